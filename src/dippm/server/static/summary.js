// Every device at one batch size: does it fit, on which slice, how long, how much energy and memory.

import { judge } from "./catalogue.js";
import { draw, make } from "./elements.js";
import { formatFigure, formatInterval, formatWhole } from "./figures.js";

const VERDICTS = {
  yes: { mark: "✓", text: "Fits" },
  no: { mark: "✕", text: "Does not fit" },
  unsure: { mark: "?", text: "May not fit" },
};
const PARTS = ["context", "weights", "gradients", "optimizer", "activations", "kv_cache", "workspace", "slack"];
const GAUGE = { width: 1000, height: 30 };

/**
 * A list of devices with their predictions at one batch, and what to know of it. `largest` has the largest batches: none
 * yet where it is undefined, unknown ones where it is empty. `linkWith(name)` is a link that asks for a device as well.
 */
export function showSummary({ predictions, catalogue, largest, linkWith }) {
  const find = (name) => largest && (largest.find(({ device }) => device === name) ?? null);
  const list = make("ul", { class: "devices" }, predictions.map((each) =>
    deviceCard(each, { limits: catalogue.limits(each.device), largest: find(each.device), linkWith })));
  const named = predictions.find(({ mig }) => mig);
  if (!named) return [list];
  return [list, make("p", { class: "hint" },
    `${timeOf(named)} and energy are of the whole device, also where a MIG slice is named. For the slice's own figures `,
    `choose it as a device, such as ${named.mig}@${named.device}: “on this slice” does so.`)];
}

/** The verdict on a prediction: "yes", "no" or "unsure"; null where memory or capacity is not known. */
export function verdictOf(prediction, limits) {
  const interval = prediction.intervals.memory_mb;
  return interval && limits ? judge(interval, limits.capacity) : null;
}

/** The verdict as a word with a mark, for people who see no colours. */
export function showVerdict(verdict) {
  if (verdict === null) return make("span", {}, "–");
  const { mark, text } = VERDICTS[verdict];
  return make("span", { class: `verdict ${verdict}` }, make("span", { "aria-hidden": "true" }, `${mark} `), text);
}

/** Why this slice, or why none: a short reason. */
export function explainSlice(prediction, limits) {
  if (prediction.mig) {
    const slice = limits?.slices.find(({ name }) => name === prediction.mig);
    return slice ? `has ${formatFigure(slice.memory_mb)} MiB` : "";
  }
  if (!limits) return "";
  if (limits.isSlice) return `is one, of ${formatFigure(limits.capacity)} MiB`;
  if (!limits.slices.length) return "no MIG on this device";
  const largest = Math.max(...limits.slices.map(({ memory_mb }) => memory_mb));
  return `the largest has ${formatFigure(largest)} MiB`;
}

function deviceCard(prediction, { limits, largest, linkWith }) {
  const verdict = verdictOf(prediction, limits);
  return make("li", { class: "device" },
    make("div", { class: "device-head" }, make("h4", {}, prediction.device), showVerdict(verdict)),
    make("dl", {},
      metric(timeOf(prediction), prediction, "latency_ms", "ms"),
      metric("Energy", prediction, "energy_j", "J"),
      metric("Memory", prediction, "memory_mb", "MiB"),
      entry("MIG slice", prediction.mig ?? prediction.no_slice, "", explainSlice(prediction, limits), sliceLink(prediction, linkWith)),
      largest === undefined ? entry("Largest batch", "…", "", "being asked") : largestBatch(largest)),
    prediction.memory_mb ? gauge(prediction, limits) : null);
}

function timeOf({ mode }) {
  return mode === "training" ? "Step time" : "Latency";
}

function metric(title, prediction, name, unit) {
  const value = prediction[name];
  const interval = prediction.intervals[name];
  if (value === null) return entry(title, "–", "", "not known");
  return entry(title, formatFigure(value), unit, interval ? `[${formatInterval(interval)}]` : "no interval");
}

function largestBatch(found) {
  if (!found) return entry("Largest batch", "–", "", "not known");
  const { batch, batch_at_most: most } = found;
  if (most === batch) return entry("Largest batch", formatWhole(batch), "", "for certain");
  return entry("Largest batch", formatWhole(batch), "", `perhaps ${formatWhole(most)}`);
}

function sliceLink({ device, mig }, linkWith) {
  const name = `${mig}@${device}`;
  const href = mig && linkWith(name);
  return href ? make("a", { class: "more", href, "aria-label": `on this slice, ${name}` }, "on this slice") : null;
}

function entry(title, value, unit, more, link = null) {
  return make("div", {}, make("dt", {}, title),
    make("dd", {}, make("span", { class: "value" }, value, unit ? make("span", { class: "unit" }, ` ${unit}`) : null),
      make("span", { class: "more" }, ` ${more}`), link ? " " : null, link));
}

/** The memory in parts on a bar as long as the device's, with its interval and the slices' limits as ticks. */
function gauge(prediction, limits) {
  const [low, high] = prediction.intervals.memory_mb ?? [prediction.memory_mb, prediction.memory_mb];
  const capacity = limits?.capacity ?? high;
  const x = (value) => (GAUGE.width * value) / Math.max(capacity, high);
  let start = 0;
  const names = Object.keys(prediction.memory_parts_mb).sort((a, b) => PARTS.indexOf(a) - PARTS.indexOf(b));
  const parts = names.map((name) => {
    const from = start;
    start += prediction.memory_parts_mb[name];
    return draw("rect", { class: `part look${look(name)}`, x: x(from), y: 8, width: x(start - from), height: 14 });
  });
  const ticks = (limits?.slices ?? []).map(({ memory_mb }) =>
    draw("line", { class: "tick", x1: x(memory_mb), x2: x(memory_mb), y1: 2, y2: 28 }));
  const whisker = [[low, high, 15, 15], [low, low, 10, 20], [high, high, 10, 20]].map(([from, to, y1, y2]) =>
    draw("line", { class: "whisker", x1: x(from), x2: x(to), y1, y2 }));
  const bar = draw("svg",
    { class: "gauge", viewBox: `0 0 ${GAUGE.width} ${GAUGE.height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("rect", { class: "room", x: 0, y: 8, width: x(capacity), height: 14 }), parts, ticks,
    limits ? draw("line", { class: "end", x1: x(capacity), x2: x(capacity), y1: 0, y2: 30 }) : null, whisker);
  const seen = names.filter((name) => prediction.memory_parts_mb[name] >= 0.5);
  const text = make("ul", { class: "parts", "aria-label": "Parts of the memory at its peak, MiB" },
    make("li", {}, "at the peak:"), seen.map((name) =>
    make("li", {}, make("i", { class: `swatch look${look(name)}`, "aria-hidden": "true" }),
      `${name.replaceAll("_", " ")} ${formatFigure(prediction.memory_parts_mb[name])}`)),
    limits ? make("li", { class: "of" }, `of ${formatFigure(capacity)} MiB`) : null);
  return make("div", { class: "memory" }, bar, text);
}

function look(part) {
  return Math.max(0, PARTS.indexOf(part));
}
