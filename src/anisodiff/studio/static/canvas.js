// A canvas to paint on: a layer of color, a layer of mask, undo, and a brush that the keyboard can move, too.
import {announce, loaded, make} from "./api.js";

export const SIDE = 256;
const DEEPEST = 40;

export class Painting {
  constructor(place, {changed, picked, tooled}) {
    Object.assign(this, {place, changed, picked, tooled, tool: "brush", color: "#3b7d2c", size: 28, done: [], undone: [], cursor: [SIDE / 2, SIDE / 2]});
    const layer = (name) => make("canvas", {width: SIDE, height: SIDE, class: name});
    this.paint = layer("paint");
    this.mask = layer("mask");
    Object.entries({tabindex: 0, role: "application", "aria-label": "Painting canvas: arrow keys move the brush, space paints, B E I M N choose tools"})
      .forEach(([key, value]) => this.paint.setAttribute(key, value));
    this.dot = make("span", {class: "dot", hidden: true});
    place.append(this.paint, this.mask, this.dot);
    this.pens = {paint: this.paint.getContext("2d", {willReadFrequently: true}), mask: this.mask.getContext("2d", {willReadFrequently: true})};
    this.clear(false);
    this.paint.addEventListener("pointerdown", (event) => this.begin(event));
    this.paint.addEventListener("pointermove", (event) => this.hover(event));
    this.paint.addEventListener("pointerleave", () => { this.dot.hidden = true; });
    this.paint.addEventListener("focus", () => this.mark());
    this.paint.addEventListener("blur", () => { this.dot.hidden = true; });
    this.paint.addEventListener("keydown", (event) => this.key(event));
  }

  at(event) {
    const box = this.paint.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width * SIDE, (event.clientY - box.top) / box.height * SIDE];
  }

  hover(event) { this.cursor = this.at(event); this.mark(); }

  mark() {
    this.dot.hidden = false;
    this.dot.style.left = `${this.cursor[0] / SIDE * 100}%`;
    this.dot.style.top = `${this.cursor[1] / SIDE * 100}%`;
    this.dot.style.width = `${this.size / SIDE * 100}%`;
    this.dot.style.aspectRatio = "1";
  }

  begin(event) {
    event.preventDefault();
    this.paint.focus();
    let last = this.at(event);
    if (this.tool === "picker") { this.pick(last); return; }
    this.remember();
    this.stroke(last, last);
    this.paint.setPointerCapture(event.pointerId);
    const move = (next) => {
      const now = this.at(next);
      this.stroke(last, now);
      last = this.cursor = now;
      this.mark();
    };
    const end = () => {
      this.paint.removeEventListener("pointermove", move);
      this.paint.removeEventListener("pointerup", end);
      this.paint.removeEventListener("pointercancel", end);
      this.changed();
    };
    this.paint.addEventListener("pointermove", move);
    this.paint.addEventListener("pointerup", end);
    this.paint.addEventListener("pointercancel", end);
  }

  stroke(from, to) {
    const masks = this.tool === "mask" || this.tool === "unmask", pen = this.pens[masks ? "mask" : "paint"];
    pen.globalCompositeOperation = this.tool === "unmask" ? "destination-out" : "source-over";
    pen.strokeStyle = this.tool === "eraser" ? "#ffffff" : masks ? "#d0202a" : this.color;
    pen.lineWidth = this.size;
    pen.lineCap = pen.lineJoin = "round";
    pen.beginPath();
    pen.moveTo(...from);
    pen.lineTo(to[0] + 0.01, to[1]);
    pen.stroke();
    pen.globalCompositeOperation = "source-over";
  }

  pick([x, y]) {
    const [r, g, b] = this.pens.paint.getImageData(Math.floor(x), Math.floor(y), 1, 1).data;
    this.color = `#${[r, g, b].map((v) => v.toString(16).padStart(2, "0")).join("")}`;
    this.picked(this.color);
    announce(`color ${this.color}`);
  }

  key(event) {
    const step = event.shiftKey ? 24 : 8;
    const move = {ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step]}[event.key];
    const tool = {b: "brush", e: "eraser", i: "picker", m: "mask", n: "unmask"}[event.key.toLowerCase()];
    if (move) this.cursor = this.cursor.map((value, k) => Math.min(SIDE - 1, Math.max(0, value + move[k])));
    else if (event.key === " ") {
      if (this.tool === "picker") this.pick(this.cursor);
      else { this.remember(); this.stroke(this.cursor, this.cursor); this.changed(); }
    } else if (event.ctrlKey || event.metaKey) {
      if (event.key === "z") this.undo();
      else if (event.key === "y" || event.key === "Z") this.redo();
      else return;
    }
    else if (event.key === "[" || event.key === "]") { this.size = Math.min(96, Math.max(4, this.size + (event.key === "]" ? 4 : -4))); this.tooled(); }
    else if (tool) { this.tool = tool; this.tooled(); }
    else return;
    event.preventDefault();
    this.mark();
  }

  state() { return Object.fromEntries(Object.entries(this.pens).map(([name, pen]) => [name, pen.getImageData(0, 0, SIDE, SIDE)])); }
  restore(state) { for (const [name, pixels] of Object.entries(state)) this.pens[name].putImageData(pixels, 0, 0); this.changed(); }
  remember() { this.done.push(this.state()); this.undone = []; if (this.done.length > DEEPEST) this.done.shift(); }
  undo() { if (this.done.length) { this.undone.push(this.state()); this.restore(this.done.pop()); announce("undone"); } }
  redo() { if (this.undone.length) { this.done.push(this.state()); this.restore(this.undone.pop()); announce("done again"); } }

  clear(remembered = true) {
    if (remembered) this.remember();
    this.pens.paint.fillStyle = "#ffffff";
    this.pens.paint.fillRect(0, 0, SIDE, SIDE);
    if (remembered) this.changed();
  }

  clearMask() { this.remember(); this.pens.mask.clearRect(0, 0, SIDE, SIDE); this.changed(); }

  /** Lay a picture over the whole canvas, its pixels as they are. */
  async lay(address) {
    const image = await loaded(address);
    this.remember();
    this.pens.paint.imageSmoothingEnabled = false;
    this.pens.paint.drawImage(image, 0, 0, SIDE, SIDE);
    this.changed();
  }

  get address() { return this.paint.toDataURL("image/png"); }

  /** The mask, or null where nothing is masked. */
  get maskAddress() {
    const pixels = this.pens.mask.getImageData(0, 0, SIDE, SIDE).data;
    for (let k = 3; k < pixels.length; k += 4) if (pixels[k] > 127) return this.mask.toDataURL("image/png");
    return null;
  }
}
