// The two charts: a figure to choose and the memory, both against the batch size.

import { drawChart } from "./chart.js";
import { make } from "./elements.js";
import { formatFigure, formatInterval, formatWhole } from "./figures.js";

const LOOKS = 8;
const MOST_BANDS = 3;

/** What the first chart can show: `of` reads `{y, low, high}` from a prediction, null where it has none. */
const MEASURES = {
  time: { title: ({ mode }) => (mode === "training" ? "Step time, ms" : "Latency, ms"), of: (each) => bounded(each, "latency_ms") },
  rate: {
    title: () => "Throughput, samples a second",
    of: (each) => {
      const samples = 1e3 * each.batch * (each.accumulation ?? 1);
      const time = bounded(each, "latency_ms");
      return { y: samples / time.y, low: samples / time.high, high: samples / time.low };
    },
  },
  energy: { title: ({ mode }) => (mode === "training" ? "Energy of a step, J" : "Energy of a call, J"), of: (each) => bounded(each, "energy_j") },
};

/** The section of charts; `view` says what is looked at, and `onView(changes)` is called with what a person changes. */
export class Curves {
  #predictions;
  #catalogue;
  #onView;
  #view;
  #left = make("div", { class: "plot" });
  #right = make("div", { class: "plot" });
  #limits = make("p", { class: "hint" });
  #measure;
  #device;

  constructor({ predictions, catalogue, onView }) {
    this.#predictions = predictions;
    this.#catalogue = catalogue;
    this.#onView = onView;
    this.#measure = make("select", { id: "measure", onchange: () => onView({ show: this.#measure.value }) },
      Object.entries(MEASURES).map(([value, { title }]) => make("option", { value }, title(predictions[0]))));
    this.#device = make("select", { id: "limits-of", onchange: () => onView({ of: this.#device.value }) },
      this.#names().map((name) => make("option", { value: name }, name)));
    new ResizeObserver(() => this.#draw()).observe(this.#left);
  }

  /** The section itself. */
  element() {
    const hasSeveral = this.#names().length > 1;
    return make("section", { class: "card", "aria-labelledby": "curves-title" },
      make("h3", { id: "curves-title" }, "Against the batch size"),
      hasSeveral ? this.#legend() : null,
      make("div", { class: "plots" },
        make("div", {},
          make("div", { class: "above" }, make("label", { for: "measure", class: "hidden" }, "First chart"), this.#measure), this.#left),
        make("div", {},
          make("div", { class: "above" }, make("strong", {}, "Memory, MiB"),
            hasSeveral ? make("label", { class: "beside" }, "limits of ", this.#device) : null), this.#right)),
      this.#limits,
      make("p", { class: "hint" }, "Bands: the interval that holds 90 % of measured values. All figures stand in the table below."));
  }

  show(view) {
    this.#view = view;
    this.#measure.value = Object.hasOwn(MEASURES, view.show) ? view.show : "time";
    if (this.#names().includes(view.of)) this.#device.value = view.of;
    this.#draw();
  }

  #names() {
    return [...new Set(this.#predictions.map(({ device }) => device))];
  }

  #legend() {
    return make("ul", { class: "legend" }, this.#names().map((name, place) =>
      make("li", {}, make("i", { class: `swatch look${place % LOOKS}`, "aria-hidden": "true" }), name)));
  }

  #draw() {
    const width = Math.floor(this.#left.clientWidth);
    if (!this.#view || width < 100) return;
    const { title, of } = MEASURES[this.#measure.value];
    const name = this.#device.value;
    const shared = { width, at: this.#view.at, onPick: (at) => this.#onView({ at }) };
    const left = this.#series(of);
    const empty = make("p", { class: "hint" }, "There is no energy for these devices.");
    const heading = title(this.#predictions[0]);
    this.#left.replaceChildren(
      left.length ? drawChart({ ...shared, series: left, limits: [], label: describe(heading, left) }) : empty);
    const limits = this.#limitsOf(name);
    const right = this.#series((each) => bounded(each, "memory_mb"));
    const label = `${describe("Memory, MiB", right)} ${this.#limitsText(name)}`;
    const unknown = make("p", { class: "hint" }, "There is no memory for these devices.");
    this.#right.replaceChildren(right.length ? drawChart({ ...shared, series: right, limits, label }) : unknown);
    this.#limits.textContent = this.#limitsText(name);
  }

  #series(of) {
    const names = this.#names();
    const focus = this.#device.value;
    return names.map((name, place) => ({
      name,
      look: place % LOOKS,
      hasBand: names.length <= MOST_BANDS || name === focus,
      points: this.#predictions.filter(({ device }) => device === name)
        .map((each) => ({ x: each.batch, ...of(each) })).filter(({ y }) => y > 0),
    })).filter(({ points }) => points.length);
  }

  #limitsOf(name) {
    const limits = this.#catalogue.limits(name);
    if (!limits) return [];
    const whole = { label: limits.isSlice ? "this slice" : "whole device", value: limits.capacity, isWhole: true };
    return [...limits.slices.map((slice) => ({ label: slice.name, value: slice.memory_mb, isWhole: false })), whole];
  }

  #limitsText(name) {
    const limits = this.#limitsOf(name);
    return limits.length ? `Limits of ${name}: ${limits.map(({ label, value }) => `${label} ${formatFigure(value)}`).join(", ")} MiB.` : "";
  }
}

function bounded(prediction, name) {
  const [low, high] = prediction.intervals[name] ?? [];
  return { y: prediction[name], low, high };
}

function describe(title, series) {
  const lines = series.map(({ name, points }) => {
    const [first, last] = [points[0], points.at(-1)];
    const text = ({ x, y, low, high }) =>
      `${formatFigure(y)}${low === undefined ? "" : ` (${formatInterval([low, high])})`} at batch ${formatWhole(x)}`;
    return `${name}: ${points.length > 1 ? `from ${text(first)} to ${text(last)}` : text(first)}.`;
  });
  return `${title} against batch size. ${lines.join(" ")}`;
}
