// Pages of results: blocks of text, tables that can be sorted and filtered, figures, curves.
import {make} from "./api.js";
import {lineChart} from "./chart.js";

/** Text with **bold**, `code` and [links](page.md) as elements; nothing in it is taken as HTML. */
function inline(text, followed) {
  const parts = [];
  for (const piece of text.split(/(\*\*[^*]+\*\*|`[^`]+`|\[[^\]]+\]\([^)]+\))/)) {
    const link = /^\[([^\]]+)\]\(([^)]+)\)$/.exec(piece);
    if (piece.startsWith("**") && piece.length > 4) parts.push(make("strong", {}, piece.slice(2, -2)));
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

/** A table whose heads sort it. */
export function table(head, rows, followed = null, chosen = null) {
  const body = make("tbody");
  let order = [null, 1];
  const draw = (shown) => body.replaceChildren(...shown.map((row) => {
    const line = make("tr", chosen ? {tabindex: 0, onclick: () => chosen(row, line), onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); chosen(row, line); } }} : {},
      ...row.map((cell) => make("td", {}, ...inline(String(cell), followed))));
    return line;
  }));
  const sort = (column) => {
    order = [column, order[0] === column ? -order[1] : 1];
    const key = (row) => value(String(row[column]));
    const sorted = [...rows].sort((one, other) => {
      const [a, b] = [key(one), key(other)];
      const by = a === null || b === null ? String(one[column]).localeCompare(String(other[column])) : a - b;
      return order[1] * by;
    });
    draw(sorted);
  };
  draw(rows);
  const heads = head.map((words, k) => make("th", {scope: "col"}, make("button", {type: "button", "aria-label": `Sort by ${words || "the first column"}`, onclick: () => sort(k)}, words || "·")));
  return make("div", {class: "scroll"}, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
}

/** Hide the rows of all tables below a place that do not hold the words. */
export function filterRows(place, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of place.querySelectorAll("tbody tr")) row.hidden = !wanted.every((word) => row.textContent.toLowerCase().includes(word));
}

/** Draw a page of the server into a place. */
export function drawPage(place, where, {page, blocks, curves}, followed = null) {
  const address = (source) => `/api/page/figure?${new URLSearchParams({where, page, source})}`;
  const parts = blocks.map((block) => {
    if (block.kind === "heading") return make(`h${Math.min(4, block.level + 1)}`, {}, ...inline(block.text, followed));
    if (block.kind === "code") return make("pre", {tabindex: 0}, block.text);
    if (block.kind === "list") return make("ul", {}, ...block.items.map((item) => make("li", {}, ...inline(item, followed))));
    if (block.kind === "table") return table(block.head, block.rows, followed);
    if (block.kind === "figure") return make("img", {src: address(block.source), alt: block.words, loading: "lazy"});
    return make("p", {}, ...inline(block.text, followed));
  });
  const drawn = curves.map((curve) => make("div", {}, make("h3", {}, curve.title), lineChart({...curve, logX: true})));
  place.replaceChildren(...parts.slice(0, 1), ...(drawn.length ? [make("div", {class: "columns"}, ...drawn)] : []), ...parts.slice(1));
}
