// The operators that cost most, of one prediction.

import { make } from "./elements.js";
import { formatBytes, formatCount, formatFigure, formatShape, formatWhole } from "./figures.js";
import { announce } from "./messages.js";
import { Cancelled } from "./service.js";

const TOP = 12;
const LONGEST_PLACE = 48;
const LARGE_BYTES = 32 * 2 ** 20;

/** The section; `ask({device, batch, top, signal})` promises the service's answer. */
export class Operators {
  #ask;
  #size;
  #device;
  #batch;
  #body = make("div");
  #running = null;

  constructor({ predictions, fileSize, ask }) {
    this.#ask = ask;
    this.#size = fileSize;
    this.#device = choice("operators-device", predictions.map(({ device }) => device), () => this.#reload());
    this.#batch = choice("operators-batch", predictions.map(({ batch }) => batch), () => this.#reload());
  }

  element() {
    return make("section", { class: "card", id: "operators", "aria-labelledby": "operators-title" },
      make("h3", { id: "operators-title" }, "Operators that cost most"),
      make("p", { class: "choices" },
        make("label", {}, "on ", this.#device), make("label", {}, "at batch ", this.#batch)),
      this.#body);
  }

  /** Begin with this device and batch; a large file is sent again only where it is asked for. */
  start({ device, batch }) {
    this.#device.value = device;
    this.#batch.value = batch;
    return this.#offer(() => this.#load());
  }

  #reload() {
    return this.#offer(async () => {
      await this.#load();
      announce(`Operators on ${this.#device.value} at batch ${this.#batch.value}.`);
    });
  }

  #offer(load) {
    if (this.#size <= LARGE_BYTES) return load();
    this.stop();
    this.#body.replaceChildren(make("button", { type: "button", onclick: load },
      `Ask for them (sends the file again, ${formatBytes(this.#size)})`));
    return undefined;
  }

  stop() {
    this.#running?.abort();
  }

  async #load() {
    this.stop();
    const running = new AbortController();
    this.#running = running;
    this.#body.replaceChildren(make("p", { class: "hint" }, "Working …"));
    try {
      const question = { device: this.#device.value, batch: Number(this.#batch.value), top: TOP };
      const { answer } = await this.#ask({ ...question, signal: running.signal });
      if (this.#running === running) this.#show(answer);
    } catch (problem) {
      if (problem instanceof Cancelled || this.#running !== running) return;
      this.#body.replaceChildren(make("p", { class: "problem" }, `${problem.message} ${problem.cure ?? ""}`));
    }
  }

  #show({ prediction, phases, operators }) {
    const total = prediction.latency_ms;
    const longest = Math.max(...operators.map(({ time_ms }) => time_ms), 0);
    const heads = [["operator", ""], ["time, ms", "number"], ["share", "number"], ["module", ""], ["output", ""], ["MACs", "number"], ["live, MiB", "number"]];
    const names = Object.keys(phases);
    this.#body.replaceChildren(
      ...(names.length > 1 ? [phaseLine(phases)] : []),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of operators" },
        make("table", { class: "operators" },
          make("caption", { class: "hidden" }, `Operators by time on ${prediction.device} at batch ${formatWhole(prediction.batch)}`),
          make("thead", {}, make("tr", {}, heads.map(([head, look]) => make("th", { scope: "col", class: look || null }, head)))),
          make("tbody", {}, operators.map((each) => operatorRow(each, { total, longest, hasPhases: names.length > 1 }))))));
  }
}

function operatorRow(operator, { total, longest, hasPhases }) {
  const { phase } = operator;
  const isOptimizer = phase === "optimizer";
  // An optimizer stands in no module, and its operators take all parameters at once: no output is the one.
  const place = (!isOptimizer && operator.scope) || operator.source_op;
  const shape = isOptimizer ? "–" : formatShape(operator.output_shape);
  const kind = operator.kind.replaceAll("_", " ");
  const bar = make("span", { class: "bar", "aria-hidden": "true" });
  bar.style.inlineSize = `${longest ? (4 * operator.time_ms) / longest : 0}rem`;
  return make("tr", {},
    make("th", { scope: "row" }, kind, hasPhases && kind !== phase ? make("span", { class: "more" }, ` ${phase}`) : null),
    make("td", { class: "number" }, formatFigure(operator.time_ms)),
    make("td", { class: "number share" }, bar, formatShare(operator.time_ms / total)),
    // The end of a module's path tells more than its beginning.
    make("td", { class: "place" }, place.length > LONGEST_PLACE ? `…${place.slice(1 - LONGEST_PLACE)}` : place),
    make("td", {}, shape),
    make("td", { class: "number" }, operator.macs ? formatCount(operator.macs).trimEnd() : "–"),
    make("td", { class: "number" }, formatFigure(operator.live_mb)));
}

function formatShare(part) {
  if (!Number.isFinite(part)) return "";
  return part < 0.005 ? "< 1 %" : `${Math.round(100 * part)} %`;
}

function phaseLine(phases) {
  const parts = Object.entries(phases).map(([name, time_ms]) => `${name} ${formatFigure(time_ms)}`);
  return make("p", {}, `A step is ${parts.join(" + ")} ms.`);
}

function choice(id, values, onchange) {
  return make("select", { id, onchange }, [...new Set(values)].map((value) =>
    make("option", { value }, typeof value === "number" ? formatWhole(value) : value)));
}
