// Strokes to images: paint or take strokes from a photograph, choose a strength, see candidates.
import {$, Latest, announce, complain, droppable, later, make, number, options, save, stream} from "./api.js";
import {Painting} from "./canvas.js";
import {Side, conditions, listModels, modelFacts, offerClasses, runSides} from "./generate.js";

const PALETTE = [
  ["#6db3e8", "sky"], ["#1f5f99", "deep blue"], ["#3b7d2c", "grass"], ["#8bbf5a", "light green"], ["#8a5a2b", "brown"], ["#d9b48f", "sand"],
  ["#c33b2f", "red"], ["#e8a13a", "orange"], ["#f4e04d", "yellow"], ["#777777", "gray"], ["#1c1c1c", "black"], ["#ffffff", "white"],
];

export function startStrokes(shared) {
  const making = new Latest(), noising = new Latest(), painting_ = new Latest();
  let picture = "photograph", before = null;
  const pictures = Object.entries(shared.about.pictures);
  const models = () => [$("s-model").value, ...($("s-compare").checked ? [$("s-model-b").value] : [])];

  const noise = later(60, () => noising.run((signal) => stream("/api/noised", {
    model: $("s-model").value, painting: painting.address, strength: Number($("s-strength").value), seed: Number($("s-seed").value),
  }, (event) => {
    if (event.kind !== "noised") return;
    $("s-noised").src = event.image;
    $("s-noised-words").textContent = `What the model starts from: t = ${number(event.t, 3)}, σ/σ_data = ${number(event.level, 3)}`;
    complain("");
  }, signal)));

  const painting = new Painting($("s-canvas"), {
    changed: noise,
    picked: (color) => { $("s-color").value = color; choose("brush"); },
    tooled: () => { choose(painting.tool); $("s-size").value = painting.size; },
  });

  function choose(tool) {
    painting.tool = tool;
    for (const button of $("s-tools").children) button.setAttribute("aria-pressed", button.dataset.tool === tool);
    announce(`tool: ${tool}`);
  }

  async function fit() {
    try {
      const facts = await modelFacts(shared, $("s-model").value), [low, high] = facts.strengths;
      Object.assign($("s-strength"), {min: (Math.ceil(low * 100 + 1) / 100).toFixed(2), max: Math.min(0.99, Math.floor(high * 100) / 100).toFixed(2)});
      await offerClasses(shared, "s", "none", models());
      say();
      noise();
    } catch (error) { complain(error.message); }
  }

  function say() { $("s-said").textContent = Number($("s-strength").value).toFixed(2); }

  async function strokes(way) {
    complain("");
    await painting_.run((signal) => stream("/api/strokes", {
      model: $("s-model").value, picture, way: way ?? $("s-way").value, colors: Number($("s-colors").value), smooth: Number($("s-smooth").value),
      edge: Number($("s-edge").value), amount: Number($("s-amount").value),
    }, (event) => { if (event.kind === "painting") painting.lay(event.image); }, signal));
  }

  for (const button of $("s-tools").children) button.addEventListener("click", () => choose(button.dataset.tool));
  $("s-palette").append(...PALETTE.map(([color, name]) => {
    const swatch = make("button", {type: "button", title: name, "aria-label": `Color ${name}`, onclick: () => { painting.color = $("s-color").value = color; choose("brush"); }});
    swatch.style.background = color;
    return swatch;
  }));
  $("s-color").addEventListener("input", () => { painting.color = $("s-color").value; });
  $("s-size").addEventListener("input", () => { painting.size = Number($("s-size").value); });
  $("s-undo").addEventListener("click", () => painting.undo());
  $("s-redo").addEventListener("click", () => painting.redo());
  $("s-clear").addEventListener("click", () => painting.clear());
  $("s-clear-mask").addEventListener("click", () => painting.clearMask());
  $("s-save").addEventListener("click", () => {
    save("painting.png", painting.address);
    if (painting.maskAddress) save("mask.png", maskFile());
  });
  /** The mask as `anisodiff edit --mask` reads it: white where to edit, black elsewhere. */
  function maskFile() {
    const sheet = make("canvas", {width: painting.mask.width, height: painting.mask.height}), pen = sheet.getContext("2d");
    const held = painting.pens.mask.getImageData(0, 0, sheet.width, sheet.height);
    for (let k = 0; k < held.data.length; k += 4) held.data.fill(held.data[k + 3] > 127 ? 255 : 0, k, k + 3), held.data[k + 3] = 255;
    pen.putImageData(held, 0, 0);
    return sheet.toDataURL("image/png");
  }
  $("s-strength").addEventListener("input", () => { say(); noise(); });
  $("s-seed").addEventListener("change", noise);
  $("s-model").addEventListener("change", fit);
  $("s-model-b").addEventListener("change", fit);
  $("s-compare").addEventListener("change", () => { $("s-other").hidden = !$("s-compare").checked; fit(); });
  $("s-picture").addEventListener("change", () => { picture = $("s-picture").value; });
  $("s-way").addEventListener("change", () => {
    for (const name of ["kmeans", "cartoon"]) for (const label of document.querySelectorAll(`#strokes label.${name}`)) label.hidden = $("s-way").value !== name;
  });
  $("s-paint").addEventListener("click", () => strokes());
  $("s-photo").addEventListener("click", () => strokes("photo"));
  droppable($("s-drop"), $("s-file"), (answer, file) => {
    picture = answer.picture;
    options($("s-picture"), [...pictures, [picture, `${file.name} (${answer.words})`]], picture);
    strokes();
  });
  $("s-split").addEventListener("input", () => { $("s-new").style.clipPath = `inset(0 0 0 ${$("s-split").value}%)`; });
  $("s-cancel").addEventListener("click", () => making.cancel());
  $("s-go").addEventListener("click", async () => {
    complain("");
    before = painting.address;
    const common = {painting: before, mask: painting.maskAddress, strength: Number($("s-strength").value), seed: Number($("s-seed").value), n: Number($("s-n").value), steps: Number($("s-steps").value)};
    const names = models();
    let asked;
    try {
      asked = await Promise.all(names.map(async (model) => ["/api/edit", {...common, model, ...conditions("s", await modelFacts(shared, model))}]));
    } catch (error) { complain(error.message); return; }
    const sides = names.map((name) => new Side(name, (address) => {
      $("s-before").hidden = false;
      $("s-old").src = before;
      $("s-new").src = address;
      $("s-split").dispatchEvent(new Event("input"));
    }));
    $("s-sides").replaceChildren(...sides.map((side) => side.box));
    $("s-go").disabled = true;
    $("s-cancel").disabled = false;
    await runSides(making, sides, asked);
    $("s-go").disabled = false;
    $("s-cancel").disabled = true;
  });
  options($("s-picture"), pictures);

  return async () => {
    try {
      await listModels(shared, $("s-model"), $("s-model-b"));
      await fit();
    } catch (error) { complain(error.message); }
  };
}
