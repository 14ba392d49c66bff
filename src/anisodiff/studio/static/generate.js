// Images from noise, seen while they are made; two samplers or models at equal seeds.
import {$, Latest, announce, choices, chosen, complain, get, loaded, make, number, options, save, stream, waiting} from "./api.js";

/** Draw the n pictures of a strip in rows. */
export async function drawStrip(canvas, address, n) {
  const image = await loaded(address), side = image.width / n, columns = Math.min(n, 4), rows = Math.ceil(n / columns);
  canvas.width = columns * side;
  canvas.height = rows * image.height;
  const pen = canvas.getContext("2d");
  for (let k = 0; k < n; k += 1) pen.drawImage(image, k * side, 0, side, image.height, (k % columns) * side, Math.floor(k / columns) * image.height, side, image.height);
}

/** All images side by side, enlarged, as one PNG. */
export async function saveSheet(name, addresses) {
  const images = await Promise.all(addresses.map(loaded)), columns = Math.ceil(Math.sqrt(images.length));
  const factor = Math.max(1, Math.floor(128 / images[0].width)), [w, h] = [images[0].width * factor, images[0].height * factor];
  const sheet = make("canvas", {width: columns * w, height: Math.ceil(images.length / columns) * h}), pen = sheet.getContext("2d");
  pen.imageSmoothingEnabled = false;
  for (const [k, image] of images.entries()) pen.drawImage(image, (k % columns) * w, Math.floor(k / columns) * h, w, h);
  save(name, sheet.toDataURL("image/png"));
}

/** One side of the panel: where a job stands, its states, what it expects, its images, how to make them again. */
export class Side {
  constructor(title, picked = null) {
    this.picked = picked;
    this.words = make("p", {class: "note", role: "status"}, "waiting");
    this.bar = make("progress", {max: 1, value: 0, "aria-label": `Progress of ${title}`});
    this.states = make("canvas", {width: 1, height: 1, role: "img", "aria-label": "States of the reverse process"});
    this.expected = make("canvas", {width: 1, height: 1, role: "img", "aria-label": "Images that the model expects"});
    this.way = make("div", {class: "way"}, make("figure", {class: "shot"}, this.states, make("figcaption", {}, "state")),
      make("figure", {class: "shot"}, this.expected, make("figcaption", {}, "E[x0 | state]")));
    this.images = make("div", {class: "images"});
    this.line = make("textarea", {readonly: true, rows: 4, "aria-label": `Command and Python of ${title}`});
    this.all = make("button", {disabled: true, onclick: () => saveSheet(`${title}.png`, [...this.found.values()])}, "Save all");
    this.box = make("div", {class: "card"}, make("h2", {}, title), this.words, this.bar, this.way, this.images,
      make("div", {class: "bar"}, this.all), this.line);
    this.found = new Map();
  }

  take(event) {
    if (event.kind === "queued" || event.kind === "began") this.words.textContent = waiting(event);
    if (event.kind === "protocol") {
      this.line.value = [event.command, event.python].filter(Boolean).join("\n");
      this.protocol = `${event.sampler}, ${event.nfe} NFE`;
    }
    if (event.kind === "step") {
      this.words.textContent = `step ${event.number} of ${event.of}, t = ${number(event.t, 3)}`;
      this.bar.value = event.done / event.total;
      drawStrip(this.states, event.states, event.seeds.length);
      drawStrip(this.expected, event.expected, event.seeds.length);
    }
    if (event.kind === "image") this.add(event.seed, event.image, event.name);
    if (event.kind === "done") {
      this.bar.value = 1;
      this.words.textContent = `${this.found.size} images; ${this.protocol}`;
      this.all.disabled = false;
      announce(this.words.textContent);
    }
  }

  add(seed, address, name) {
    this.found.set(seed, address);
    const image = make("img", {src: address, alt: `Image of seed ${seed}${name ? `, ${name}` : ""}`});
    const shown = this.picked ? make("button", {class: "pick", type: "button", "aria-label": `Compare seed ${seed} with the painting`, onclick: () => this.picked(address)}, image) : image;
    const figure = make("figure", {"data-seed": seed}, shown, make("figcaption", {}, `${name ? `${name}, ` : ""}seed ${seed} `,
      make("button", {class: "quiet", "aria-label": `Save the image of seed ${seed}`, onclick: () => save(`seed-${seed}.png`, address)}, "⤓")));
    const old = this.images.querySelector(`[data-seed="${seed}"]`);
    if (old) old.replaceWith(figure);
    else this.images.append(figure);
  }

  stopped(words) { this.words.textContent = `${words}; ${this.found.size} images were finished`; this.all.disabled = !this.found.size; }
}

/** The facts of a model, asked once. */
export async function modelFacts(shared, name) {
  if (!shared.models.has(name)) shared.models.set(name, await get(`/api/model?name=${encodeURIComponent(name)}`));
  return shared.models.get(name);
}

/** Fill the lists of models; they grow with the runs. */
export async function listModels(shared, ...selects) {
  const names = (await get("/api/about?size=64")).models;
  for (const name of [...shared.models.keys()]) if (!shared.about.models.includes(name)) shared.models.delete(name);
  for (const select of selects) options(select, names.map((name) => [name, name]));
}

/** Offer the classes of the first model that has some in the fields of a panel; hide them where none has. */
export async function offerClasses(shared, panel, usual, models) {
  const all = await Promise.all(models.map((name) => modelFacts(shared, name)));
  const facts = all.find((one) => one.classes.length) ?? all[0];
  const words = ["data", "all", ...(facts.null ? ["none"] : [])].filter((word) => !facts.classes.includes(word));
  const names = {data: "as in the data", all: "all in turn", none: "none: any class"};
  options($(`${panel}-class`), [...words.map((word) => [word, names[word]]), ...facts.classes.map((name) => [name, name])],
    [...words, ...facts.classes].includes($(`${panel}-class`).value) ? $(`${panel}-class`).value : usual);
  for (const field of ["class", "guidance"]) $(`${panel}-${field}`).parentElement.hidden = !facts.classes.length;
}

/** The class and guidance of a panel, as far as a model knows them. */
export function conditions(panel, facts) {
  const name = $(`${panel}-class`).value;
  return facts.classes.includes(name) || (facts.classes.length && ["data", "all", "none"].includes(name)) ? {classes: name, guidance: Number($(`${panel}-guidance`).value)} : {};
}

/** Run the jobs of all sides; one that fails or is cancelled says so, and the others go on. */
export async function runSides(latest, sides, jobs) {
  await latest.run((signal) => Promise.all(jobs.map(([path, body], k) => stream(path, body, (event) => sides[k].take(event), signal).catch((error) => {
    sides[k].stopped(signal.aborted ? "cancelled" : error.message);
    if (!signal.aborted) complain(error.message);
  }))));
}

export function startGenerate(shared) {
  const latest = new Latest();
  const comparing = () => $("g-compare").checked;

  async function offer(select, list) {
    try {
      const facts = await modelFacts(shared, select.value);
      $(list).replaceChildren(...facts.samplers.map((value) => make("option", {value})));
      if (select.id === "g-model") {
        options($("g-prior"), facts.priors.map((name) => [name, name]));
        $("g-facts").textContent = `${facts.words}; auto is ${facts.sampler}. Equal seeds make equal images.`;
      }
      await offerClasses(shared, "g", "data", [$("g-model").value, ...(comparing() ? [$("g-model-b").value] : [])]);
    } catch (error) { complain(error.message); }
  }

  $("g-model").addEventListener("change", () => offer($("g-model"), "g-samplers"));
  $("g-model-b").addEventListener("change", () => offer($("g-model-b"), "g-samplers-b"));
  $("g-compare").addEventListener("change", () => { $("g-other").hidden = !comparing(); offer($("g-model-b"), "g-samplers-b"); });
  $("g-cancel").addEventListener("click", () => latest.cancel());
  for (const field of ["g-sampler", "g-sampler-b"]) choices($(field));
  $("g-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    complain("");
    const common = {seed: Number($("g-seed").value), n: Number($("g-n").value), steps: Number($("g-steps").value)}, prior = $("g-prior").value;
    const asked = [];
    try {
      for (const which of comparing() ? ["", "-b"] : [""]) {
        const model = $(`g-model${which}`).value, facts = await modelFacts(shared, model);
        asked.push({...common, model, sampler: chosen($(`g-sampler${which}`)), prior: facts.priors.includes(prior) ? prior : "auto", ...conditions("g", facts)});
      }
    } catch (error) { complain(error.message); return; }
    const sides = asked.map((one) => new Side(`${one.model}, ${one.sampler}`));
    $("g-sides").replaceChildren(...sides.map((side) => side.box));
    $("g-go").disabled = true;
    $("g-cancel").disabled = false;
    await runSides(latest, sides, asked.map((one) => ["/api/generate", one]));
    $("g-go").disabled = false;
    $("g-cancel").disabled = true;
  });

  return async () => {
    try {
      await listModels(shared, $("g-model"), $("g-model-b"));
      await offer($("g-model"), "g-samplers");
      await offer($("g-model-b"), "g-samplers-b");
    } catch (error) { complain(error.message); }
  };
}
