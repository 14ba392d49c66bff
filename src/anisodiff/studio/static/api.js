// Requests to the studio, and small helpers of the page. Nothing here speaks to any other host.
const client = crypto.getRandomValues(new Uint32Array(4)).reduce((text, part) => text + part.toString(36), "").slice(0, 24);
const HEADERS = {"X-Client": client.padEnd(8, "0")};

export const $ = (id) => document.getElementById(id);

/** An element with attributes, handlers (on…) and children. */
export function make(name, attributes = {}, ...children) {
  const found = name.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) found.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) found.setAttribute(key, value === true ? "" : value);
  }
  found.append(...children.filter((child) => child !== null && child !== undefined));
  return found;
}

/** A message of an error in the page; without words it is taken away. */
export function complain(words) {
  const place = $("message");
  place.hidden = !words;
  place.querySelector("span").textContent = words || "";
}

/** A line for screen readers. */
export function announce(words) { $("status").textContent = words; }

async function refusal(answer) {
  const text = await answer.text();
  try { return JSON.parse(text).message || text; } catch { return text || `error ${answer.status}`; }
}

/** An answer of the studio; a refusal and no answer at all are errors of one line. */
async function asked(path, body, signal) {
  const raw = body instanceof Blob, headers = raw || body === null ? HEADERS : {...HEADERS, "Content-Type": "application/json"};
  const options = body === null ? {} : {method: "POST", body: raw ? body : JSON.stringify(body)};
  const answer = await fetch(path, {...options, headers, signal}).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("the studio does not answer; is it still running?");
  });
  if (!answer.ok) throw new Error(await refusal(answer));
  return answer;
}

export async function get(path) { return (await asked(path, null)).json(); }
export async function post(path, body) { return (await asked(path, body)).json(); }

/** Events of a request, one JSON object a line, as they come; `signal` cancels the work on the server, too. */
export async function stream(path, body, on, signal) {
  const answer = await asked(path, body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const event = JSON.parse(line);
      if (event.kind === "error") throw new Error(event.message);
      await on(event);
      signal.throwIfAborted();
    }
  }
}

/** One request at a time: a new one cancels the one before. */
export class Latest {
  constructor() { this.controller = null; }
  get busy() { return this.controller !== null; }
  cancel() { this.controller?.abort(); this.controller = null; }
  /** True where it ended by itself. */
  async run(work) {
    this.cancel();
    const own = this.controller = new AbortController();
    try {
      await work(own.signal);
      return !own.signal.aborted;
    } catch (error) {
      if (!own.signal.aborted) complain(error.message);
      return false;
    } finally {
      if (this.controller === own) this.controller = null;
    }
  }
}

/** The words of a place in the queue, and of progress. */
export function waiting(event) {
  if (event.kind === "queued") return event.position ? `waiting: ${event.position} before you` : "next";
  if (event.kind === "began") return "working";
  return "";
}

export function save(name, address) { make("a", {href: address, download: name}).click(); }

export function saveText(name, text) {
  const address = URL.createObjectURL(new Blob([text], {type: "text/plain"}));
  save(name, address);
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

export const loaded = (address) => new Promise((resolve, reject) => {
  const image = new Image();
  image.onload = () => resolve(image);
  image.onerror = () => reject(new Error("a picture of the answer cannot be read"));
  image.src = address;
});

/** A file that is chosen, or dropped anywhere on the panel. */
export function droppable(place, input, took) {
  const panel = place.closest("[role=tabpanel]");
  const take = async (file) => {
    if (!file) return;
    try {
      complain("");
      took(await post("/api/pictures", file), file);
    } catch (error) { complain(`${file.name}: ${error.message}`); }
  };
  input.addEventListener("change", () => { take(input.files[0]); input.value = ""; });
  panel.addEventListener("dragover", () => place.classList.add("over"));
  panel.addEventListener("dragleave", () => place.classList.remove("over"));
  panel.addEventListener("drop", (event) => {
    place.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
}

/** A text field with a list: all of the list is offered, not only what resembles the present value. */
export function choices(input) {
  const restore = () => { if (!input.value.trim()) input.value = input.placeholder; };
  input.addEventListener("focus", () => { input.placeholder = input.value; input.value = ""; });
  input.addEventListener("change", restore, {capture: true});
  input.addEventListener("blur", restore);
  return input;
}

/** What such a field holds, also while its list is open. */
export const chosen = (input) => input.value.trim() || input.placeholder;

/** Fill a list, and keep its choice; one that is the same already stays as it is, also while it is open. */
export function options(select, pairs, wanted) {
  const before = wanted ?? select.value;
  if (JSON.stringify(pairs) !== JSON.stringify([...select.options].map((one) => [one.value, one.text]))) select.replaceChildren(...pairs.map(([value, words]) => make("option", {value}, words)));
  if (pairs.some(([value]) => value === before)) select.value = before;
}

export const number = (value, digits = 4) => value === null || value === undefined ? "–" : String(Number(value.toPrecision(digits)));
export const later = (milliseconds, work) => { let timer; return (...given) => { clearTimeout(timer); timer = setTimeout(() => work(...given), milliseconds); }; };
