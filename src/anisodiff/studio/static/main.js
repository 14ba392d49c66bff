// Tabs, theme, and the start of every panel.
import {$, announce, complain, get} from "./api.js";
import {startDesigner} from "./designer.js";
import {startGenerate} from "./generate.js";
import {startResults} from "./results.js";
import {startRuns} from "./runs.js";
import {startStrokes} from "./strokes.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const opened = {};

export function open(name, focus = false) {
  for (const tab of tabs) {
    const mine = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", mine);
    tab.tabIndex = mine ? 0 : -1;
    $(tab.getAttribute("aria-controls")).hidden = !mine;
    if (mine && focus) tab.focus();
  }
  if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
  opened[name]?.();
}

function startTabs() {
  for (const [k, tab] of tabs.entries()) {
    const name = tab.id.slice(4);
    tab.addEventListener("click", () => open(name));
    tab.addEventListener("keydown", (event) => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      const to = event.key === "Home" ? 0 : event.key === "End" ? tabs.length - 1 : step ? (k + step + tabs.length) % tabs.length : null;
      if (to === null) return;
      event.preventDefault();
      open(tabs[to].id.slice(4), true);
    });
  }
}

function startTheme() {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  try { if (localStorage.theme) root.dataset.theme = localStorage.theme; } catch { /* no storage: the system's choice */ }
  $("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    try { localStorage.theme = root.dataset.theme; } catch { /* for this page alone */ }
  });
}

async function start() {
  startTabs();
  startTheme();
  $("message").querySelector("button").addEventListener("click", () => complain(""));
  document.addEventListener("click", (event) => {
    const place = event.target.closest?.(".copy");
    if (!place) return;
    const text = $(place.dataset.copies);
    text.select();
    if (navigator.clipboard) navigator.clipboard.writeText(text.value);
    else document.execCommand("copy"); // not on loopback
    announce("copied");
  });
  for (const stray of ["dragover", "drop"]) document.addEventListener(stray, (event) => event.preventDefault());
  try {
    const about = await get("/api/about?size=64");
    const shared = {about, open, models: new Map()};
    opened.designer = startDesigner(shared);
    opened.generate = startGenerate(shared);
    opened.strokes = startStrokes(shared);
    opened.runs = startRuns(shared);
    opened.results = startResults(shared);
    const wanted = location.hash.slice(1);
    open(tabs.some((tab) => tab.id === `tab-${wanted}`) ? wanted : "designer");
    document.body.dataset.ready = "yes";
  } catch (error) { complain(`The studio does not answer: ${error.message}`); }
}

start();
