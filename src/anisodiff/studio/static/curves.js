// A coefficient over time as a curve that one can drag. The notation is that of the package: geometric(0.5, 64).
import {make, number} from "./api.js";

const W = 260, H = 130, LEFT = 48, RIGHT = 12, TOP = 8, BOTTOM = 18;
const KINDS = {
  constant: ["a"], geometric: ["a", "b"], power: ["a", "b", "r"], pulse: ["total", "center", "width"], cutoff: ["total", "end", "r"], exponential: ["a", "k"], infinite: [],
};
const round = (value) => Number(value.toPrecision(4));
const label = (value) => typeof value === "number" ? number(value) : value; // what was typed may be no number

/** The value at time t; ∞ where it is infinite. */
export function valueAt(curve, t, T) {
  const v = curve.values, s = t / T;
  switch (curve.kind) {
    case "constant": return v.a;
    case "geometric": return v.a * (v.b / v.a) ** s;
    case "power": return v.a + (v.b - v.a) * s ** v.r;
    case "pulse": return v.total / (4 * v.width * Math.cosh((t - v.center) / (2 * v.width)) ** 2);
    case "cutoff": return t <= v.end ? v.r * v.total / v.end * (t / v.end) ** (v.r - 1) : 0;
    case "exponential": return v.a * Math.expm1(v.k * T) / Math.expm1(v.k * (T - t));
    default: return Infinity;
  }
}

/** The curve in the notation that the package reads. */
export function written(curve) {
  const v = curve.values;
  if (curve.kind === "infinite") return "infinite";
  if (curve.kind === "constant") return String(v.a);
  if (curve.kind === "geometric") return `geometric(${v.a}, ${v.b})`;
  const named = KINDS[curve.kind].map((key) => key === "a" || key === "b" ? v[key] : `${key}=${v[key]}`);
  return `${curve.kind}(${named.join(", ")})`;
}

/** Another kind with about the same ends. */
function converted(curve, kind, T, isotropic) {
  const finite = (value, other) => Number.isFinite(value) && value > 0 ? round(value) : other;
  const usual = isotropic ? 0.05 : 0.5;
  const a = finite(valueAt(curve, 0, T), usual), b = finite(valueAt(curve, T, T), isotropic ? 1 : a);
  const values = {
    constant: {a: curve.kind === "infinite" ? usual : round(Math.sqrt(a * b))}, geometric: {a, b}, power: {a, b, r: 1},
    pulse: {total: round(Math.max(a, b)), center: round(T / 3), width: round(T / 10)},
    cutoff: {total: round(Math.max(a, b) * T / 2), end: round(T / 2), r: 1}, exponential: {a, k: 0.5}, infinite: {},
  };
  return {kind, values: values[kind]};
}

/** A card with the curve, its kind and its numbers; `changed()` is called after every change. */
export class CurveEditor {
  constructor({symbol, name, kinds, range, changed}) {
    const isotropic = kinds.includes("infinite");
    Object.assign(this, {symbol, name, isotropic, range, changed, T: 2, curve: {kind: "constant", values: {a: 0}}});
    this.kind = make("select", {"aria-label": `Kind of ${symbol}`, onchange: () => {
      this.curve = converted(this.curve, this.kind.value, this.T, isotropic);
      this.draw();
      changed();
    }}, ...kinds.map((kind) => make("option", {value: kind}, kind)));
    this.inputs = make("span", {class: "bar"});
    this.svg = make("svg:svg", {viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": `${symbol}, ${name}, over time`});
    this.box = make("div", {class: "curve"}, make("h4", {}, `${symbol}  ${name}`), this.svg, make("div", {class: "bar"}, this.kind, this.inputs));
  }

  set(curve, T) {
    this.curve = {kind: curve.kind, values: {...curve.values}};
    this.T = T;
    this.draw();
  }

  get text() { return written(this.curve); }

  y(value) {
    const [low, high] = this.range.map(Math.log10);
    const place = value > 0 ? (Math.log10(value) - low) / (high - low) : 0; // ∞ is at the top
    return H - BOTTOM - Math.min(1, Math.max(0, place)) * (H - TOP - BOTTOM);
  }

  x(s) { return LEFT + s * (W - LEFT - RIGHT); }

  /** The value at a height; at the very bottom 0, where that is allowed. */
  valueAtHeight(y) {
    const [low, high] = this.range.map(Math.log10), place = (H - BOTTOM - y) / (H - TOP - BOTTOM);
    if (place <= 0) return this.isotropic || ["geometric", "pulse", "cutoff"].includes(this.curve.kind) ? this.range[0] : 0;
    return round(10 ** (low + Math.min(1, place) * (high - low)));
  }

  /** What can be dragged: place s, value, and what a new value or place changes. */
  handles() {
    const v = this.curve.values, T = this.T;
    const mid = valueAt(this.curve, T / 2, T);
    const set = (key) => (value) => { v[key] = value; };
    switch (this.curve.kind) {
      case "constant": return [{label: "value", s: 0.5, value: v.a, move: set("a")}];
      case "geometric": return [{label: "start", s: 0, value: v.a, move: set("a")}, {label: "end", s: 1, value: v.b, move: set("b")}];
      case "power": return [
        {label: "start", s: 0, value: v.a, move: set("a")}, {label: "end", s: 1, value: v.b, move: set("b")},
        {label: "bend", s: 0.5, value: mid, move: (value) => {
          const part = (value - v.a) / (v.b - v.a);
          if (part > 0 && part < 1) v.r = round(Math.min(20, Math.max(0.05, Math.log(part) / Math.log(0.5))));
        }}];
      case "pulse": return [{label: "peak", s: Math.min(1, v.center / T), value: v.total / (4 * v.width), move: (value, s) => {
        v.total = round(Math.max(this.range[0], value * 4 * v.width));
        if (s !== null) v.center = round(Math.min(1, Math.max(0, s)) * T);
      }}];
      case "cutoff": return [{label: "end", s: Math.min(1, v.end / T), value: v.r * v.total / v.end, move: (value, s) => {
        if (s !== null) v.end = round(Math.min(1, Math.max(0.01, s)) * T);
        v.total = round(Math.max(this.range[0], value) * v.end / v.r);
      }}];
      case "exponential": return [
        {label: "start", s: 0, value: v.a, move: set("a")},
        {label: "bend", s: 0.5, value: mid, move: (value) => { if (value > 2.02 * v.a) v.k = round(2 / T * Math.log(value / v.a - 1)); }}];
      default: return [{label: "value", s: 0.5, value: Infinity, move: (value) => { this.curve = {kind: "constant", values: {a: value}}; }}];
    }
  }

  draw() {
    this.kind.value = this.curve.kind;
    const path = [];
    for (let k = 0; k <= 80; k += 1) {
      const value = valueAt(this.curve, k / 80 * this.T, this.T);
      path.push(`${k ? "L" : "M"}${this.x(k / 80).toFixed(1)} ${this.y(value).toFixed(1)}`);
    }
    const [low, high] = this.range, ticks = [];
    for (let power = Math.log10(low); power <= Math.log10(high) + 1e-9; power += 2) ticks.push(10 ** power);
    const parts = ticks.flatMap((value) => [
      make("svg:line", {class: "axis", x1: LEFT, x2: W - RIGHT, y1: this.y(value), y2: this.y(value)}),
      make("svg:text", {class: "tick", x: LEFT - 10, y: this.y(value) + 3, "text-anchor": "end"}, number(value, 1))]);
    parts.push(make("svg:text", {class: "tick", x: LEFT, y: H - 4}, "t = 0"), make("svg:text", {class: "tick", x: W - RIGHT, y: H - 4, "text-anchor": "end"}, `T = ${number(this.T)}`));
    if (this.curve.kind === "infinite") parts.push(make("svg:text", {class: "tick", x: W / 2 + 30, y: TOP + 14}, "∞: isotropic"));
    parts.push(make("svg:path", {class: "trace", d: path.join("")}));
    this.dots = this.handles().map((handle, k) => this.dot(handle, k));
    const held = this.svg.contains(document.activeElement) ? document.activeElement.dataset.number : null;
    this.svg.replaceChildren(...parts, ...this.dots);
    if (held !== null) this.dots[held]?.focus();
    this.drawInputs();
  }

  dot(handle, k) {
    const place = {cx: this.x(handle.s), cy: this.y(handle.value)}, finite = Number.isFinite(handle.value);
    const dot = make("svg:g", {
      class: "handle", tabindex: 0, role: "slider", "data-number": k, "aria-label": `${this.symbol}, ${handle.label}`,
      "aria-valuenow": finite ? handle.value : this.range[1], "aria-valuemin": 0, "aria-valuemax": this.range[1],
      "aria-valuetext": finite ? number(handle.value) : "infinite"},
    make("svg:circle", {...place, r: 16, class: "halo"}), make("svg:circle", {...place, r: 7}));
    dot.addEventListener("pointerdown", (event) => this.drag(event, k));
    dot.addEventListener("keydown", (event) => {
      const factor = {ArrowUp: 1.1, ArrowDown: 1 / 1.1, PageUp: 2, PageDown: 0.5}[event.key];
      const aside = {ArrowRight: 0.02, ArrowLeft: -0.02}[event.key];
      if (!factor && !aside) return;
      event.preventDefault();
      const now = this.handles()[k], from = Math.min(this.range[1], now.value > 0 ? now.value : this.range[0]);
      now.move(factor ? round(Math.min(this.range[1], from * factor)) : from, aside ? now.s + aside : null);
      this.draw();
      this.changed();
    });
    return dot;
  }

  drag(event, k) {
    event.preventDefault();
    this.dots[k].focus();
    const box = this.svg.getBoundingClientRect();
    const move = (at) => {
      const x = (at.clientX - box.left) / box.width * W, y = (at.clientY - box.top) / box.height * H;
      this.handles()[k].move(this.valueAtHeight(y), (x - LEFT) / (W - LEFT - RIGHT));
      this.draw();
      this.changed();
    };
    const end = () => { removeEventListener("pointermove", move); removeEventListener("pointerup", end); removeEventListener("pointercancel", end); };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
    addEventListener("pointercancel", end);
  }

  drawInputs() {
    const keys = KINDS[this.curve.kind];
    if (this.inputs.contains(document.activeElement)) {
      for (const input of this.inputs.querySelectorAll("input")) if (input !== document.activeElement) input.value = label(this.curve.values[input.dataset.key]);
      return;
    }
    this.inputs.replaceChildren(...keys.map((key) => make("label", {}, key, make("input", {
      value: label(this.curve.values[key]), "data-key": key, inputmode: "decimal", "aria-label": `${this.symbol}, ${key}`,
      onchange: (event) => {
        const text = event.target.value.trim(), value = Number(text);
        this.curve.values[key] = text === "" || Number.isNaN(value) ? text : value; // the server says what is wrong
        if (typeof this.curve.values[key] === "number") this.draw();
        this.changed();
      }}))));
  }
}
