// Charts as SVG: lines over logarithmic or plain axes, and bars. Colors come from the style sheet.
import {make, number} from "./api.js";

const COLORS = ["#2f6fa5", "#c0611f", "#3c8d4f", "#a33f7a", "#7a66b8", "#8a7a2a", "#3a8f94", "#b04545", "#6b7683", "#4a5fb0"];
const W = 420, H = 210, LEFT = 54, RIGHT = 18, TOP = 8, BOTTOM = 30;

function scale(low, high, log, from, to) {
  const [a, b] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
  const span = b - a || 1;
  return (value) => from + ((log ? Math.log10(value) : value) - a) / span * (to - from);
}

function ticks(low, high, log) {
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const every = Math.max(1, Math.ceil((last - first) / 5)), found = [];
    for (let k = first; k <= last; k += every) found.push(10 ** k);
    return found.length > 1 ? found : [low, high];
  }
  const step = 10 ** Math.floor(Math.log10((high - low) / 2 || 1)), every = (high - low) / step > 6 ? step * 2 : step;
  const found = [];
  for (let value = Math.ceil(low / every) * every; value <= high + 1e-9 * every; value += every) found.push(value);
  return found;
}

const short = (value) => Math.abs(value) >= 1e4 ? `${number(value / (value >= 1e6 ? 1e6 : 1e3), 3)}${value >= 1e6 ? "M" : "k"}` : number(value, 3);

function frame(words, x, y, xs, ys) {
  const svg = make("svg:svg", {class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": words.title});
  for (const value of ys) {
    svg.append(make("svg:line", {class: "axis", x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value)}),
      make("svg:text", {class: "tick", x: LEFT - 4, y: y(value) + 3, "text-anchor": "end"}, short(value)));
  }
  for (const value of xs) svg.append(make("svg:text", {class: "tick", x: x(value), y: H - 16, "text-anchor": "middle"}, short(value)));
  svg.append(make("svg:text", {class: "tick", x: (W + LEFT) / 2, y: H - 4, "text-anchor": "middle"}, words.x || ""));
  return svg;
}

/** Lines {name, points: [[x, y]]}; axes are logarithmic where asked and possible. */
export function lineChart({title, x: across = "", y: up = "", lines, logX = false, logY = false}) {
  const drawn = lines.filter((line) => line.points.length);
  const points = drawn.flatMap((line) => line.points);
  if (!points.length) return make("p", {class: "note"}, "Nothing to draw yet.");
  const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  logX &&= Math.min(...xs) > 0;
  logY &&= Math.min(...ys) > 0;
  const pad = (low, high, log) => low < high ? [low, high] : log ? [low / 2, low * 2] : [low - 1, high + 1];
  const [x0, x1] = pad(Math.min(...xs), Math.max(...xs), logX), [y0, y1] = pad(Math.min(...ys), Math.max(...ys), logY);
  const x = scale(x0, x1, logX, LEFT, W - RIGHT), y = scale(y0, y1, logY, H - BOTTOM, TOP);
  const svg = frame({title: `${title}: ${drawn.length} lines, ${up} from ${number(y0)} to ${number(y1)}`, x: across}, x, y, ticks(x0, x1, logX), ticks(y0, y1, logY));
  for (const [k, line] of drawn.entries()) {
    const color = COLORS[k % COLORS.length];
    const path = line.points.map(([a, b], n) => `${n ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    svg.append(make("svg:path", {class: "trace", d: path}, make("svg:title", {}, line.name)));
    svg.lastChild.style.stroke = color;
    if (line.points.length < 30) {
      for (const [a, b] of line.points) {
        const dot = make("svg:circle", {cx: x(a), cy: y(b), r: 2.6}, make("svg:title", {}, `${line.name}: ${number(a)}, ${number(b)}`));
        dot.style.fill = color;
        svg.append(dot);
      }
    }
  }
  return make("div", {}, svg, drawn.length > 1 ? legend(drawn.map((line, k) => [line.name, {style: COLORS[k % COLORS.length]}])) : null);
}

/** Names beside their colors; the words keep the color of text. */
function legend(entries) {
  return make("p", {class: "note legend"}, ...entries.map(([name, {style, kind}]) => {
    const dot = make("i", {class: kind});
    if (style) dot.style.background = style;
    return make("span", {}, dot, name);
  }));
}

/** Bars of one or two series over bands, logarithmic, with the value below which nothing can be told. */
export function barChart({title, x: across, series, least, low = 1e-4, high = 1e4}) {
  const count = series[0].values.length;
  const y = scale(low, high, true, H - BOTTOM, TOP), width = (W - LEFT - RIGHT) / count;
  const x = (k) => LEFT + width * (k + 0.5);
  const words = series.map((one) => `${one.name}: ${one.values.map((v) => v === null ? "no noise" : number(v, 2)).join(", ")}`).join("; ");
  const svg = frame({title: `${title}. ${words}`, x: across}, x, y, [...Array(count).keys()], ticks(low, high, true));
  const thick = width * 0.7 / series.length;
  for (const [s, one] of series.entries()) {
    for (const [k, given] of one.values.entries()) {
      const value = Math.min(high, Math.max(low, given ?? high));
      const bar = make("svg:rect", {class: s ? "bar-b" : "bar-a", x: x(k) - width * 0.35 + s * thick, width: thick, y: y(value), height: Math.max(0, y(low) - y(value))},
        make("svg:title", {}, `${one.name}, band ${k}: ${given === null ? "no noise yet" : number(given, 3)}`));
      svg.append(bar);
    }
  }
  svg.append(make("svg:line", {class: "axis", x1: LEFT, x2: W - RIGHT, y1: y(1), y2: y(1), "stroke-width": 2}));
  if (least) {
    const path = least.map((value, k) => `M${x(k) - width * 0.4} ${y(value)}H${x(k) + width * 0.4}`).join("");
    svg.append(make("svg:path", {class: "trace floor", d: path}));
  }
  return make("div", {}, svg, series.length > 1 ? legend(series.map((one, s) => [one.name, {kind: s ? "in-b" : "in-a"}])) : null);
}
