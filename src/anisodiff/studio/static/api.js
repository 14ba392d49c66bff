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

export async function get(path) {
  const answer = await fetch(path, {headers: HEADERS});
  if (!answer.ok) throw new Error(await refusal(answer));
  return answer.json();
}

export async function post(path, body, raw = false) {
  const headers = raw ? HEADERS : {...HEADERS, "Content-Type": "application/json"};
  const answer = await fetch(path, {method: "POST", headers, body: raw ? body : JSON.stringify(body)});
  if (!answer.ok) throw new Error(await refusal(answer));
  return answer.json();
}

/** Events of a request, one JSON object a line, as they come; `signal` cancels the work on the server, too. */
export async function stream(path, body, on, signal) {
  const options = body === null ? {headers: HEADERS, signal}
    : {method: "POST", headers: {...HEADERS, "Content-Type": "application/json"}, body: JSON.stringify(body), signal};
  const answer = await fetch(path, options);
  if (!answer.ok) throw new Error(await refusal(answer));
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
      on(event);
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

/** Files that are dropped on a place or chosen in it. */
export function droppable(place, input, took) {
  const take = async (file) => {
    if (!file) return;
    try {
      complain("");
      took(await post("/api/pictures", file, true), file);
    } catch (error) { complain(`${file.name}: ${error.message}`); }
  };
  input.addEventListener("change", () => { take(input.files[0]); input.value = ""; });
  place.addEventListener("dragover", (event) => { event.preventDefault(); place.classList.add("over"); });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    place.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
}

export function options(select, pairs, chosen) {
  const before = chosen ?? select.value;
  select.replaceChildren(...pairs.map(([value, words]) => make("option", {value}, words)));
  if (pairs.some(([value]) => value === before)) select.value = before;
}

export const number = (value, digits = 4) => value === null || value === undefined ? "–" : String(Number(value.toPrecision(digits)));
export const later = (milliseconds, work) => { let timer; return (...given) => { clearTimeout(timer); timer = setTimeout(() => work(...given), milliseconds); }; };
