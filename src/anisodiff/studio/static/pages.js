// Pages of results: blocks of text, tables that can be sorted and filtered, figures, curves.
import {make} from "./api.js";
import {lineChart} from "./chart.js";

/** Text with **bold**, *emphasis*, `code` and [links](page.md) as elements; nothing in it is taken as HTML. */
function inline(text, followed) {
  const parts = [];
  for (const piece of text.split(/(\*\*[^*]+\*\*|\*[^*\s][^*]*\*|`[^`]+`|\[[^\]]+\]\([^)]+\))/)) {
    const link = /^\[([^\]]+)\]\(([^)]+)\)$/.exec(piece);
    if (piece.startsWith("**") && piece.length > 4) parts.push(make("strong", {}, piece.slice(2, -2)));
    else if (piece.startsWith("*") && piece.length > 2) parts.push(make("em", {}, piece.slice(1, -1)));
    else if (piece.startsWith("`") && piece.length > 2) parts.push(make("code", {}, piece.slice(1, -1)));
    else if (link) {
      const page = link[2].split("#")[0];
      const known = followed?.knows(page);
      parts.push(known ? make("button", {class: "quiet", type: "button", onclick: () => followed.open(known)}, link[1]) : link[1]);
    } else parts.push(piece);
  }
  return parts;
}

const value = (text) => { const found = /-?\d[\d,]*\.?\d*(e-?\d+)?/.exec(text.replace(/\*/g, "")); return found ? Number(found[0].replace(/,/g, "")) : null; };

/** A table whose heads sort it. `chosen` makes a row a choice; `order`, [column, direction], outlives the table. */
export function table(head, rows, {followed = null, chosen = null, order = [null, 1]} = {}) {
  const body = make("tbody"), heads = head.map((words, k) => make("th", {scope: "col"}, make("button", {
    type: "button", "aria-label": `Sort by ${words.replace(/[*`]/g, "") || "the first column"}`,
    onclick: () => { order.splice(0, 2, k, order[0] === k ? -order[1] : 1); draw(); }}, ...(words ? inline(words, null) : ["·"]))));
  const compared = (one, other) => {
    const [a, b] = [one, other].map((row) => value(String(row[order[0]])));
    return order[1] * (a === null || b === null ? String(one[order[0]]).localeCompare(String(other[order[0]])) : a - b);
  };
  const cells = (row) => row.map((cell, k) => make("td", {}, ...(chosen && k === 0
    ? [make("button", {type: "button", class: "quiet", "data-name": cell}, cell)] : inline(String(cell), followed))));
  const draw = () => {
    body.replaceChildren(...(order[0] === null ? rows : [...rows].sort(compared)).map((row) => make("tr", chosen ? {onclick: () => chosen(row)} : {}, ...cells(row))));
    for (const [k, th] of heads.entries()) th.ariaSort = order[0] !== k ? "none" : order[1] > 0 ? "ascending" : "descending";
  };
  draw();
  return make("div", {class: "scroll"}, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
}

/** Hide the rows of all tables below a place that hold the words neither themselves nor in what they are `about`. */
export function filterRows(place, words, about = "") {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of place.querySelectorAll("tbody tr")) row.hidden = !wanted.every((word) => `${about} ${row.textContent}`.toLowerCase().includes(word));
}

/** Draw a page of the server into a place. */
export function drawPage(place, where, {page, blocks, curves}, followed = null) {
  const address = (source) => `/api/page/figure?${new URLSearchParams({where, page, source})}`;
  const parts = blocks.map((block) => {
    if (block.kind === "heading") return make(`h${Math.min(4, block.level + 1)}`, {}, ...inline(block.text, followed));
    if (block.kind === "code") return make("pre", {tabindex: 0}, block.text);
    if (block.kind === "list") return make("ul", {}, ...block.items.map((item) => make("li", {}, ...inline(item, followed))));
    if (block.kind === "table") return table(block.head, block.rows, {followed});
    if (block.kind === "figure") return make("img", {src: address(block.source), alt: block.words, loading: "lazy"});
    return make("p", {}, ...inline(block.text, followed));
  });
  const drawn = curves.map((curve) => make("div", {}, make("h3", {}, curve.title), lineChart({...curve, logX: true})));
  place.replaceChildren(...parts.slice(0, 1), ...(drawn.length ? [make("div", {class: "columns"}, ...drawn)] : []), ...parts.slice(1));
}
