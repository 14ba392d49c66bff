// Runs: what is in the folder, how a run goes while it goes, and trainings that are started, stopped and resumed.
import {$, Latest, announce, complain, get, later, make, number, options, post, stream} from "./api.js";
import {lineChart} from "./chart.js";
import {drawPage, filterRows, table} from "./pages.js";

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export function startRuns(shared) {
  const watching = new Latest();
  let chosen = null, run = null, follows = true, visible = false, shown = "";
  const order = [null, 1];

  async function list() {
    try {
      const found = await get("/api/runs"), text = JSON.stringify(found);
      if (text === shown) return found;
      shown = text;
      $("r-folder").textContent = `Runs in ${found.folder}`;
      options($("r-data"), found.data.length ? found.data.map((name) => [name, name]) : [["", "no images in this folder"]]);
      options($("r-process"), found.processes.map((name) => [name, name]));
      const early = found.starting.map((one) => [one.name, one.state, "", "", "", one.lines.at(-1) || ""]);
      const rows = found.runs.map((one) => [one.name, one.state, one.images ?? "–", one.loss === null ? "–" : number(one.loss), one.grids, one.speed && one.state.startsWith("training") ? `${number(one.speed, 3)} images/s` : ""]);
      const held = $("r-list").contains(document.activeElement) ? document.activeElement : null;
      $("r-list").replaceChildren(rows.length + early.length ? table(["run", "state", "images seen", "loss", "grids", "now"], [...rows, ...early], {chosen: (row) => select(row[0]), order})
        : make("p", {class: "note"}, "No runs yet. Put a folder or a zip of images here, and start one."));
      mark();
      if (held) [...$("r-list").querySelectorAll("button")].find((one) => one.textContent === held.textContent)?.focus();
      $("r-studies").replaceChildren(...(found.studies.length ? found.studies.map((page) => make("button", {onclick: () => study(page)}, page))
        : [make("p", {class: "note"}, "None in this folder.")]));
      filter();
      return found;
    } catch (error) { complain(error.message); return null; }
  }

  /** While the panel is open, the list follows the folder. */
  async function follow() {
    if (visible) return;
    visible = true;
    while (!$("runs").hidden) { await list(); await pause(2500); }
    visible = false;
  }

  async function study(page) {
    try { drawPage($("r-page"), "runs", await get(`/api/page?${new URLSearchParams({where: "runs", page})}`)); filter(); } catch (error) { complain(error.message); }
  }

  function filter() {
    for (const place of ["r-list", "r-page"]) filterRows($(place), $("r-filter").value);
    filterRows($("r-metrics"), $("r-filter").value, chosen ?? "");
  }

  /** The run that is shown below. */
  function mark() { for (const one of $("r-list").querySelectorAll("[data-name]")) one.setAttribute("aria-pressed", one.dataset.name === chosen); }

  function select(name) {
    chosen = name;
    follows = true;
    complain("");
    mark();
    watching.run((signal) => stream(`/api/run?name=${encodeURIComponent(name)}`, null, (event) => { if (event.kind === "run") { run = event; draw(); } }, signal));
  }

  function draw() {
    $("r-run").hidden = false;
    $("r-title").textContent = run.name;
    const part = run.target ? ` of ${run.target.toLocaleString("en")}` : "";
    $("r-state").textContent = `${run.state}, ${(run.images ?? 0).toLocaleString("en")}${part} images`;
    $("r-stop").disabled = run.state !== "training";
    $("r-resume").disabled = run.state !== "stopped";
    const log = run.log;
    $("r-loss").replaceChildren(lineChart({title: "Loss", x: "images seen", y: "loss", logY: true,
      lines: [{name: "loss", points: log.filter((line) => line.loss !== null).map((line) => [line.images, line.loss])}]}));
    const three = log.filter((_, k) => [0, Math.floor(log.length / 2), log.length - 1].includes(k));
    $("r-levels").replaceChildren(lineChart({title: "Loss by noise level", x: "noise level ln(σ/σ_data)", y: "loss", logY: true,
      lines: three.map((line) => ({name: `${line.images.toLocaleString("en")} images`, points: (line.loss_by_level || []).flatMap((loss, k) => {
        const edges = line.level_edges || [], half = (edges[1] - edges[0]) / 2; // between bins: the outer bins are open
        return loss === null || edges.length < 2 ? [] : [[k < edges.length ? edges[k] - half : edges[k - 1] + half, loss]];
      }).filter(([x]) => Number.isFinite(x))}))}));
    $("r-when").max = Math.max(0, run.samples.length - 1);
    if (follows) $("r-when").value = $("r-when").max;
    grid();
    $("r-metrics").replaceChildren(...(run.reports.length ? run.reports.flatMap((report) => [make("p", {class: "note"}, `${report.file}: ${report.protocol}`),
      table(["metric", "value", "error", "note"], report.values.map((v) => [v.name, number(v.value), v.error === null ? "" : `± ${number(v.error, 2)}`, v.note]))])
      : [make("p", {class: "note"}, `None yet. Measure with: anisodiff evaluate ${run.name} --json ${run.name}/report.json`)]));
    $("r-output").hidden = !run.lines.length;
    $("r-lines").textContent = run.lines.join("\n");
    $("r-config").textContent = JSON.stringify(run.config, null, 1);
    filter();
  }

  function grid() {
    const file = run.samples[Number($("r-when").value)];
    if (!file) { $("r-grid").removeAttribute("src"); $("r-grid-words").textContent = "No samples yet"; return; }
    const address = `/api/run/sample?${new URLSearchParams({name: run.name, file})}`;
    if ($("r-grid").getAttribute("src") !== address) $("r-grid").src = address;
    $("r-grid").alt = $("r-grid-words").textContent = `Samples at step ${Number(file.slice(5, -4))}`;
  }

  async function act(what, words) {
    try {
      complain("");
      await post(`/api/run/${what}`, {name: chosen});
      announce(words);
      await list();
      select(chosen);
    } catch (error) { complain(error.message); }
  }

  /** A new training has no folder in its first seconds: wait for it. */
  async function appears(name) {
    for (let k = 0; k < 240; k += 1) {
      const found = await list();
      if (found?.runs.some((one) => one.name === name)) { select(name); return; }
      const early = found?.starting.find((one) => one.name === name);
      if (early?.state === "failed") { complain(`${name}: ${early.lines.at(-1) || "the training ended"}`); return; }
      await pause(500);
    }
  }

  $("r-filter").addEventListener("input", later(80, filter));
  $("r-when").addEventListener("input", () => { follows = $("r-when").value === $("r-when").max; grid(); });
  $("r-stop").addEventListener("click", () => act("stop", "The training saves and ends."));
  $("r-resume").addEventListener("click", () => act("resume", "The training goes on."));
  $("r-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      complain("");
      const more = Object.fromEntries($("r-keys").value.split(";").map((text) => text.trim()).filter(Boolean).map((text) => {
        const [key, ...rest] = text.split("=");
        return [key.trim(), rest.join("=").trim()];
      }));
      const name = $("r-name").value, images = $("r-images").value;
      await post("/api/run/start", {name, data: $("r-data").value, process: $("r-process").value, keys: more, images: images ? Number(images) : null});
      announce(`${name} was started`);
      chosen = name;
      appears(name);
    } catch (error) { complain(error.message); }
  });
  shared.trainWith = async ({preset, size, changes}) => {
    $("r-new").open = true;
    const found = await list();
    if (!found?.processes.includes(preset)) { complain(`${preset} is a figure of the paper, not a process to train; choose another preset.`); return; }
    $("r-process").value = preset;
    $("r-keys").value = [`size=${size}`, ...Object.entries(changes).map(([key, value]) => `${key}=${value}`)].join("; ");
    announce(`The process of the designer is chosen: ${preset}`);
  };
  return follow;
}
