// The process designer: settings on the left, the trajectory they make on the right, and what `diagnose` says of it.
import {$, Latest, announce, choices, chosen, complain, droppable, get, later, loaded, make, number, options, save, saveText, stream, waiting} from "./api.js";
import {barChart} from "./chart.js";
import {CurveEditor} from "./curves.js";

const PLAIN = ["constant", "geometric", "power"], EDGES = ["infinite", ...PLAIN, "exponential"];
const COEFFICIENTS = [
  {key: "diffusivity", symbol: "α1", name: "smoothing", kinds: [...PLAIN, "pulse", "cutoff"], range: [1e-4, 1e4]},
  {key: "intensity", symbol: "α2", name: "noise", kinds: PLAIN, range: [1e-4, 1e4]},
  {key: "drift_anisotropy", symbol: "λ1", name: "edges that stop the smoothing", kinds: EDGES, range: [1e-4, 1e2]},
  {key: "noise_anisotropy", symbol: "λ2", name: "edges that stop the noise", kinds: EDGES, range: [1e-4, 1e2]},
];

/** One setting: a preset, its curves, T, stencil, step, correlation length. */
class Setting {
  constructor(which, catalog, changed) {
    Object.assign(this, {which, catalog, changed});
    const field = (words, input) => make("label", {}, words, input);
    const on = {onchange: () => this.edited()};
    this.preset = make("select", {"aria-label": `Preset ${which}`, onchange: () => { this.fill(this.preset.value); changed(); }});
    this.T = make("input", {type: "number", min: 0.01, step: 0.1, ...on});
    this.stencil = make("select", on);
    this.step = choices(make("input", {list: `d-steps-${which}`, size: 30, ...on}));
    this.steps = make("datalist", {id: `d-steps-${which}`});
    this.length = make("input", {type: "number", min: 0, step: 0.1, ...on});
    this.curves = Object.fromEntries(COEFFICIENTS.map((one) => [one.key, new CurveEditor({...one, changed: () => this.edited()})]));
    const title = which === "a" ? "Setting A" : "Setting B";
    this.box = make("div", {class: "card", role: "group", "aria-label": title}, make("h2", {}, title),
      make("div", {class: "bar"}, field("Preset", this.preset), field("T", this.T), field("Stencil", this.stencil),
        field("Time step", this.step), this.steps, field("Correlation length, pixels", this.length)),
      make("div", {class: "curves"}, ...COEFFICIENTS.map((one) => this.curves[one.key].box)));
    this.offer();
    this.fill(which === "a" ? catalog.default : "ve");
  }

  offer() {
    options(this.preset, Object.keys(this.catalog.presets).map((name) => [name, name]));
    options(this.stencil, this.catalog.stencils.map((name) => [name, name]));
    this.steps.replaceChildren(...this.catalog.steps.map((value) => make("option", {value})));
  }

  fill(name) {
    const held = this.catalog.presets[name];
    this.preset.value = name;
    this.T.value = held.T;
    this.stencil.value = held.stencil;
    this.step.value = held.step;
    this.length.value = held.correlation_length;
    for (const {key} of COEFFICIENTS) this.curves[key].set(held.curves[key], held.T);
    this.own = JSON.stringify(this.keys);
  }

  /** At another size: a preset that was not changed follows it. */
  resize(catalog) {
    const same = JSON.stringify(this.keys) === this.own, name = this.preset.value;
    this.catalog = catalog;
    if (same) this.fill(name);
  }

  get keys() {
    const number_ = (input) => input.value.trim() === "" ? "nothing" : Number.isNaN(Number(input.value)) ? input.value : Number(input.value);
    const curves = Object.fromEntries(COEFFICIENTS.map(({key}) => [key, this.curves[key].text]));
    return {...curves, T: number_(this.T), stencil: this.stencil.value, step: chosen(this.step), correlation_length: number_(this.length)};
  }

  edited() {
    const T = Number(this.T.value);
    if (T > 0 && T !== this.curves.diffusivity.T) for (const {key} of COEFFICIENTS) this.curves[key].set(this.curves[key].curve, T);
    this.suit();
    this.changed();
  }

  /** A time step that can do what the curves ask for, where the one chosen cannot. */
  suit() {
    const curve = (key) => this.curves[key].curve, smooths = curve("diffusivity").kind !== "constant" || curve("diffusivity").values.a > 0;
    const step = chosen(this.step), tamed = step.startsWith("tamed");
    let wanted = step;
    if (curve("noise_anisotropy").kind !== "infinite" || this.stencil.value === "paper") wanted = tamed ? step : "tamed(dt=0.01)";
    else if (tamed && curve("diffusivity").kind === "cutoff") wanted = "signal";
    else if (smooths && curve("drift_anisotropy").kind !== "infinite" && step === "exact") wanted = "exponential";
    if (Number(this.length.value) > 0 && wanted.startsWith("exponential")) wanted = "signal";
    if (wanted !== step) {
      this.step.value = wanted;
      announce(`The time step is now ${wanted}: ${step} cannot follow these curves.`);
    }
  }

  get asked() { return {preset: this.preset.value, keys: this.keys}; }
}

/** A picture of a trajectory, frame by frame. */
class Shot {
  constructor(name) {
    this.canvas = make("canvas", {width: 64, height: 64, role: "img", "aria-label": `State of setting ${name}`});
    this.words = make("figcaption");
    this.box = make("figure", {class: "shot"}, this.canvas, this.words);
    this.name = name;
    this.verdict = make("p", {"aria-live": "polite"}, "Waiting for the first answer.");
    this.advice = make("ul");
    this.numbers = make("p", {class: "note"});
    this.judged = make("div", {}, this.verdict, this.advice, this.numbers);
  }

  /** What `diagnose` says, and before that where the question stands. */
  judge(event, both) {
    const name = both ? `${this.name}: ` : "";
    if (event.kind === "queued") this.verdict.textContent = name + waiting(event);
    if (event.kind === "progress") this.verdict.textContent = `${name}simulating, ${event.done} of ${event.total}`;
    if (event.kind !== "verdict") return;
    this.verdict.textContent = name + event.verdict;
    this.verdict.dataset.forgets = event.forgets;
    this.advice.replaceChildren(...event.advice.map((line) => make("li", {}, line)));
    this.numbers.textContent = `${event.images} crops of this picture at ${event.size[0]}²: correlation with the source ${number(event.correlation, 2)}, ` +
      `source identified ${number(100 * event.found_again, 3)}% (chance ${number(100 * event.found_by_chance, 2)}%).`;
  }

  async take(event) {
    const image = await loaded(event.frames);
    Object.assign(this, {event, image, side: image.height});
  }

  show(k) {
    if (!this.image) return;
    const {event, side} = this, t = event.times[k], level = event.level[k];
    this.canvas.width = this.canvas.height = side;
    this.canvas.getContext("2d").drawImage(this.image, k * side, 0, side, side, 0, 0, side, side);
    const contrast = event.contrast[k] === 1 ? "" : `, contrast ×${number(event.contrast[k], 2)}`;
    this.words.textContent = `${this.name}: t = ${number(t, 3)}, σ/σ_data = ${level === null ? "0" : number(Math.exp(level), 3)}${contrast}`;
  }
}

export function startDesigner(shared) {
  let catalog = shared.about, picture = "photograph", playing = null, closed = true;
  const drawing = new Latest(), judging = new Latest(), exporting = new Latest();
  const shots = {a: new Shot("A"), b: new Shot("B")};
  const refresh = later(30, () => ask());
  const settings = {a: new Setting("a", catalog, refresh), b: new Setting("b", catalog, refresh)};
  const pictures = Object.entries(shared.about.pictures);
  const comparing = () => $("d-compare").checked;
  options($("d-picture"), pictures);
  options($("d-size"), catalog.sizes.map((size) => [String(size), `${size}²`]), "64");
  $("d-settings").append(settings.a.box);
  $("d-shots").append(shots.a.box);
  $("d-judged").append(shots.a.judged);

  const body = () => ({
    a: settings.a.asked, b: comparing() ? settings.b.asked : null, picture, size: Number($("d-size").value), seed: Number($("d-seed").value),
  });

  async function ask() {
    const begun = performance.now();
    judging.cancel();
    const whole = await drawing.run((signal) => stream("/api/design", body(), async (event) => {
      if (event.kind === "queued" && event.position > 1) $("d-speed").textContent = waiting(event);
      if (event.kind !== "trajectory") return;
      await shots[event.which].take(event);
      if (event.which === "a") {
        $("d-command").value = event.command;
        $("d-python").value = event.python;
        $("d-loud").textContent = event.loud.length ? `At T, bands ${event.loud.join(", ")} of this picture still stand out of the noise. Below the dashes a signal cannot be told from chance.`
          : "At T no band of this picture stands out of the noise. Below the dashes a signal cannot be told from chance.";
      }
      show();
      complain("");
      const spent = Math.round(performance.now() - begun);
      $("d-speed").textContent = `answered in ${spent} ms`;
      $("d-speed").dataset.ms = spent;
    }, signal));
    if (whole) judge();
  }

  const judge = later(250, () => judging.run(async (signal) => {
    const both = comparing();
    for (const which of both ? ["a", "b"] : ["a"]) {
      await stream("/api/diagnose", {...body(), a: settings[which].asked, b: null}, (event) => shots[which].judge(event, both), signal);
    }
  }));

  function show() {
    const k = Number($("d-time").value), a = shots.a.event;
    if (!a) return;
    for (const shot of Object.values(shots)) if (shot.event) shot.show(k);
    $("d-now").textContent = `t = ${number(a.times[k], 3)}`;
    $("d-time").setAttribute("aria-valuetext", `t = ${number(a.times[k], 3)}`);
    const series = [{name: "A", values: a.snr[k]}];
    if (comparing() && shots.b.event) series.push({name: "B", values: shots.b.event.snr[k]});
    $("d-snr").replaceChildren(barChart({title: "Signal-to-noise ratio by band", x: "frequency band (0: the mean color)", series, least: a.least}));
  }

  $("d-time").addEventListener("input", show);
  $("d-play").addEventListener("click", () => {
    $("d-play").textContent = playing ? "▶" : "❚❚";
    $("d-play").ariaLabel = playing ? "Play the trajectory" : "Pause the trajectory";
    if (playing) { clearInterval(playing); playing = null; return; }
    playing = setInterval(() => { $("d-time").value = (Number($("d-time").value) + 1) % catalog.frames; show(); }, 120);
  });
  $("d-seed").addEventListener("change", refresh);
  $("d-compare").addEventListener("change", () => {
    const on = comparing();
    $("d-equal").hidden = $("d-which").hidden = !on;
    if (on) { $("d-settings").append(settings.b.box); $("d-shots").append(shots.b.box); $("d-judged").append(shots.b.judged); }
    else { settings.b.box.remove(); shots.b.box.remove(); shots.b.judged.remove(); }
    refresh();
  });
  $("d-picture").addEventListener("change", () => { picture = $("d-picture").value; refresh(); });
  $("d-size").addEventListener("change", async () => {
    try {
      catalog = await get(`/api/about?size=${$("d-size").value}`);
      settings.a.resize(catalog);
      settings.b.resize(catalog);
      refresh();
    } catch (error) { complain(error.message); }
  });
  droppable($("d-drop"), $("d-file"), (answer, file) => {
    picture = answer.picture;
    options($("d-picture"), [...pictures, [picture, `${file.name} (${answer.words})`]], picture);
    announce(`${file.name}: ${answer.words}`);
    refresh();
  });
  for (const kind of ["png", "gif"]) {
    $(`d-${kind}`).addEventListener("click", () => exporting.run((signal) => stream(`/api/export/${kind}`, body(), (event) => {
      if (event.kind === "file") save(event.name, `data:${event.type};base64,${event.data}`);
      else announce(waiting(event));
    }, signal)));
  }
  $("d-save").addEventListener("click", () => save("picture.png", `/api/picture?name=${encodeURIComponent(picture)}`));
  $("d-yaml").addEventListener("click", () => { if (shots.a.event) saveText("process.yaml", shots.a.event.yaml); });
  $("d-train").addEventListener("click", () => { shared.trainWith({preset: settings.a.preset.value, size: $("d-size").value, changes: shots.a.event?.changes ?? {}}); shared.open("runs", true); });
  return () => { if (closed) { closed = false; ask(); } };
}
