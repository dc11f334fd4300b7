// Draws curves with interval bands over batch sizes, both axes logarithmic, with limits across.

import { draw } from "./elements.js";
import { formatFigure, formatWhole } from "./figures.js";

const HEIGHT = 280;
const MARGIN = { top: 8, right: 16, bottom: 34, left: 56 };
const LABEL_GAP = 13;
const BATCH_GAP = 34;
const ROOM = 1.2;

/**
 * An SVG of this width.
 * `series`: `[{name, look, hasBand, points: [{x, y, low, high}]}]`, `look` picks colour and dashes;
 * `limits`: `[{label, value, isWhole}]`; `at`: the x to mark; `label`: what it shows, in words.
 */
export function drawChart({ width, series, limits, at, label, onPick }) {
  const points = series.flatMap((each) => each.points);
  const batches = [...new Set(points.map(({ x }) => x))].sort((a, b) => a - b);
  const frame = {
    left: MARGIN.left,
    right: width - MARGIN.right,
    top: MARGIN.top,
    bottom: HEIGHT - MARGIN.bottom,
  };
  const bounds = limits.map(({ value }) => value);
  // A logarithmic axis has no place for 0.
  const lows = [...points.map((point) => (point.low > 0 ? point.low : point.y)), ...bounds];
  const highs = [...points.map((point) => point.high ?? point.y), ...bounds];
  const ticks = chooseTicks(Math.min(...lows), Math.max(...highs));
  const x = scale(batches[0], batches.at(-1), frame.left + 10, frame.right - 10);
  const y = scale(ticks.low, ticks.high, frame.bottom, frame.top);
  const svg = draw("svg",
    { class: "chart", role: "img", "aria-label": label, width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` },
    yAxis(ticks.values, y, frame), xAxis(batches, x, frame, at),
    series.filter(({ hasBand }) => hasBand).map((each) => band(each, x, y)),
    limitLines(limits, y, frame),
    series.map((each) => curve(each, x, y, at)));
  svg.addEventListener("click", (event) => {
    const place = event.clientX - svg.getBoundingClientRect().left;
    onPick(batches.reduce((best, each) => (Math.abs(x(each) - place) < Math.abs(x(best) - place) ? each : best)));
  });
  return svg;
}

function scale(low, high, from, to) {
  if (low === high) return () => (from + to) / 2;
  const span = Math.log(high / low);
  return (value) => from + ((to - from) * Math.log(Math.max(value, low) / low)) / span;
}

/** Values at 1, 2 and 5 times powers of ten, or fewer where these are many, and a range that holds all that is drawn. */
function chooseTicks(lowest, highest) {
  const [low, high] = [lowest / ROOM, highest * ROOM];
  const decades = Math.log10(high / low);
  const steps = decades > 3.5 ? [1] : decades > 1.8 ? [1, 3] : [1, 2, 5];
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    values.push(...steps.map((step) => step * 10 ** power));
  }
  return { low, high, values: values.filter((value) => value >= low && value <= high) };
}

function yAxis(values, y, frame) {
  return draw("g", { class: "axis" }, values.map((value) => [
    draw("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y(value), y2: y(value) }),
    draw("text", { x: frame.left - 8, y: y(value) + 4, "text-anchor": "end" }, formatFigure(value)),
  ]).flat());
}

function xAxis(batches, x, frame, at) {
  // The marked batch has its label wherever there is room for few.
  const labelled = [at];
  for (const batch of batches) {
    if (labelled.every((each) => Math.abs(x(each) - x(batch)) >= BATCH_GAP)) labelled.push(batch);
  }
  const marks = batches.map((batch) => {
    const text = { x: x(batch), y: frame.bottom + 16, "text-anchor": "middle", class: batch === at ? "at" : null };
    return [
      draw("line", { class: "grid", x1: x(batch), x2: x(batch), y1: frame.bottom, y2: frame.bottom + 4 }),
      labelled.includes(batch) ? draw("text", text, formatWhole(batch)) : null,
    ];
  });
  const cursor = draw("line", { class: "cursor", x1: x(at), x2: x(at), y1: frame.top, y2: frame.bottom });
  const title = draw("text", { x: frame.right, y: frame.bottom + 30, "text-anchor": "end" }, "batch size");
  return draw("g", { class: "axis" }, marks.flat(), cursor, title);
}

function band({ look, points }, x, y) {
  const upper = points.map((point) => `${x(point.x)},${y(point.high ?? point.y)}`);
  const lower = points.map((point) => `${x(point.x)},${y(point.low ?? point.y)}`).reverse();
  // A single batch has no area: its interval is a line.
  if (points.length === 1) {
    const [{ x: at, low, high, y: value }] = points;
    return draw("line", { class: `whisker look${look}`, x1: x(at), x2: x(at), y1: y(low ?? value), y2: y(high ?? value) });
  }
  return draw("polygon", { class: `band look${look}`, points: [...upper, ...lower].join(" ") });
}

function curve({ look, points }, x, y, at) {
  const line = draw("polyline", { class: `curve look${look}`, points: points.map((point) => `${x(point.x)},${y(point.y)}`).join(" ") });
  const dots = points.map((point) =>
    draw("circle", { class: `dot look${look}`, cx: x(point.x), cy: y(point.y), r: point.x === at ? 5 : 2.5 }));
  return draw("g", {}, line, dots);
}

/** Lines across, with their labels above; labels of lines that nearly touch share one. */
function limitLines(limits, y, frame) {
  const groups = [];
  for (const limit of [...limits].sort((a, b) => a.value - b.value)) {
    const last = groups.at(-1);
    if (last && y(last[0].value) - y(limit.value) < LABEL_GAP) last.push(limit);
    else groups.push([limit]);
  }
  return draw("g", { class: "limits" }, groups.map((group) => {
    const labels = [...new Set(group.map(({ label }) => label))].join(", ");
    const top = y(group.at(-1).value);
    return [
      ...group.map(({ value, isWhole }) =>
        draw("line", { class: isWhole ? "limit whole" : "limit", x1: frame.left, x2: frame.right, y1: y(value), y2: y(value) })),
      draw("text", { x: frame.left + 6, y: top - 4 }, labels),
    ];
  }).flat());
}
