// An answer: what it holds for, every device at a batch, curves, operators, warnings, figures.

import { Curves } from "./curves.js";
import { save, toCsv } from "./downloads.js";
import { make } from "./elements.js";
import { describeWeights, formatCount, formatShape, formatWhole } from "./figures.js";
import { showTable } from "./figure_table.js";
import { showNotes } from "./notes.js";
import { Operators } from "./operators.js";
import { toCommand, toFragment } from "./question.js";
import { showSummary } from "./summary.js";

/**
 * Shows one answer. `view` is what is looked at: the batch `at`, the device `of` whose limits are drawn, and the
 * measure to `show`; `onView(view)` hears of its changes, `inspect` and `maxBatch` ask the service for more.
 */
export class AnswerView {
  #answer;
  #text;
  #question;
  #catalogue;
  #view;
  #onView;
  #batches;
  #devices = make("div");
  #slider;
  #shownBatch = make("output", { for: "at" });
  #curves;
  #operators;
  #largest;
  #copied = make("span", { class: "hint", role: "status" });
  #previous = make("p", { class: "previous", hidden: true });
  #link = make("input", { class: "link", readonly: true, "aria-label": "Link to this view", hidden: true });

  constructor({ answer, text, question, catalogue, view, onView, fileSize, inspect }) {
    this.#answer = answer;
    this.#text = text;
    this.#question = question;
    this.#catalogue = catalogue;
    this.#onView = onView;
    const { predictions } = answer;
    this.#batches = [...new Set(predictions.map(({ batch }) => batch))].sort((a, b) => a - b);
    const at = this.#batches.includes(view.at) ? view.at : this.#batches[Math.floor((this.#batches.length - 1) / 2)];
    const isShown = predictions.some(({ device }) => device === view.of);
    this.#view = { ...view, at, of: isShown ? view.of : null };
    this.#slider = make("input", {
      type: "range", id: "at", min: 0, max: this.#batches.length - 1, step: 1,
      oninput: () => {
        this.#view.at = this.#batches[Number(this.#slider.value)];
        this.#show();
      },
      // Browsers bound how often an address may change, and a slider passes many values.
      onchange: () => this.#onView(this.view),
    });
    this.#curves = new Curves({ predictions, catalogue, onView: (changes) => this.#change(changes) });
    this.#operators = new Operators({ predictions, fileSize, ask: inspect });
  }

  get view() {
    return { ...this.#view };
  }

  /** The answer's elements; `note` is said above all else. */
  element(note) {
    const { model, predictions } = this.#answer;
    const parts = make("div", { class: "answer" },
      this.#previous, this.#head(note), this.#byDevice(), this.#curves.element(), this.#operators.element(),
      showNotes({ model, predictions }), showTable({ predictions, catalogue: this.#catalogue }));
    this.#show();
    return parts;
  }

  /** Begin with what is asked for on top, once the answer stands on the page. */
  start() {
    const [{ device }] = this.#answer.predictions;
    this.#operators.start({ device: this.#view.of ?? device, batch: this.#view.at });
  }

  stop() {
    this.#operators.stop();
  }

  /** Add the largest batches, or that they are not known. */
  showLargest(found) {
    this.#largest = found ?? [];
    this.#show();
  }

  /** Say that this answers an earlier question than the one that was asked last. */
  markPrevious() {
    const { model, predictions: [first] } = this.#answer;
    const asked = [...this.#question.device, first.mode, first.precision, `batch ${this.#batches.map(formatWhole).join(", ")}`];
    this.#previous.textContent = `The answer below is of the previous question: ${model.source} on ${asked.join(", ")}.`;
    this.#previous.hidden = false;
  }

  /** One sentence for those who hear the page. */
  sentence() {
    const { predictions, model } = this.#answer;
    const count = `${formatWhole(predictions.length)} ${predictions.length === 1 ? "prediction" : "predictions"}`;
    return `${count} for ${model.source}.`;
  }

  #head(note) {
    const { model, predictions } = this.#answer;
    const [first] = predictions;
    const samples = first.batch * (first.accumulation ?? 1);
    const step = first.mode === "training" ? `training step by ${first.optimizer}` : "inference";
    const extra = [
      first.accumulation > 1 ? `${formatWhole(first.accumulation)} batches a step` : null,
      first.checkpointing ? "activation checkpointing" : null,
      first.lora ? `adapters of rank ${first.lora}` : null,
    ];
    const holds = [step, first.precision, first.layout, first.runtime, ...extra, first.software].filter(Boolean);
    // Of one sample: without the axis that grows with the batch, which need not be the first.
    const other = predictions.find(({ batch }) => batch !== first.batch);
    const inputs = Object.entries(first.inputs).map(([name, shape]) =>
      `${name} ${formatShape(shape.filter((size, axis) => (other ? size === other.inputs[name][axis] : axis > 0)))}`);
    return make("header", { class: "answer-head" },
      make("h2", { id: "answer-title", tabindex: "-1" }, model.source),
      make("p", { class: "facts" },
        `${model.framework}, ${formatWhole(model.nodes)} ${model.nodes === 1 ? "operator" : "operators"}, ${describeWeights(model)}, `,
        `${formatCount(first.macs / samples)}MACs a sample${first.mode === "training" ? " (forward and backward)" : ""}; ${inputs.join(", ")}`),
      make("p", { class: "holds" }, make("span", {}, "Predicted for"), holds.map((each) => make("span", { class: "tag" }, each))),
      note ? make("p", { class: "problem" }, note) : null,
      make("div", { class: "actions" },
        make("button", { type: "button", onclick: () => this.#copyLink() }, "Copy link"),
        make("button", { type: "button", onclick: () => this.#save("csv") }, "CSV"),
        make("button", { type: "button", onclick: () => this.#save("json") }, "JSON"), this.#copied),
      this.#link,
      make("details", { class: "command" }, make("summary", {}, "The same on the command line"),
        make("pre", { tabindex: "0", "aria-label": "Command" }, toCommand(this.#question))));
  }

  #byDevice() {
    const hasSeveral = this.#batches.length > 1;
    return make("section", { class: "card", "aria-labelledby": "devices-title" },
      make("div", { class: "above" }, make("h3", { id: "devices-title" }, "By device"),
        make("div", { class: "slider" }, make("label", { for: "at" }, "at batch"), hasSeveral ? this.#slider : null, this.#shownBatch)),
      this.#devices,
      make("p", { class: "hint" }, "Beside each figure: the interval that holds 90 % of measured values. ",
        "Bars: the memory in parts at the moment of its peak, its interval as a line, and where the MIG slices end as ticks."));
  }

  #change(changes) {
    this.#view = { ...this.#view, ...changes };
    this.#show();
    this.#onView(this.view);
  }

  #show() {
    const { at } = this.#view;
    const place = this.#batches.indexOf(at);
    this.#slider.value = place;
    this.#slider.setAttribute("aria-valuetext", `batch ${formatWhole(at)}`);
    this.#shownBatch.textContent = formatWhole(at);
    const predictions = this.#answer.predictions.filter(({ batch }) => batch === at);
    this.#devices.replaceChildren(...showSummary({
      predictions, catalogue: this.#catalogue, largest: this.#largest, linkWith: (name) => this.#linkWith(name),
    }));
    this.#curves.show(this.#view);
  }

  /** A link to the same question with one more device; null where it is among them. */
  #linkWith(name) {
    const { device } = this.#question;
    return this.#answer.predictions.some((each) => each.device === name)
      ? null : toFragment({ ...this.#question, device: [...device, name] }, this.#view);
  }

  async #copyLink() {
    try {
      // Only pages of https and of this machine may.
      await navigator.clipboard.writeText(location.href);
      this.#copied.textContent = "Copied.";
    } catch {
      this.#link.hidden = false;
      this.#link.value = location.href;
      this.#link.select();
      this.#copied.textContent = "Copy it from here.";
    }
  }

  #save(extension) {
    const { source } = this.#answer.model;
    if (extension === "csv") save(toCsv(this.#answer), { type: "text/csv", source, extension });
    else save(this.#text, { type: "application/json", source, extension });
  }
}
