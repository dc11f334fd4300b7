// Every figure in a table: what the charts show, in words and numbers.

import { make } from "./elements.js";
import { formatFigure, formatInterval, formatWhole } from "./figures.js";
import { showVerdict, verdictOf } from "./summary.js";

const FIGURES = [1, 3, 4, 5];

/** A section that unfolds to the table. */
export function showTable({ predictions, catalogue }) {
  const time = predictions[0].mode === "training" ? "step time, ms" : "latency, ms";
  const heads = ["device", "batch", "fits", time, "energy, J", "memory, MiB", "MIG slice"];
  const rows = predictions.map((each) =>
    make("tr", {},
      make("th", { scope: "row" }, each.device), make("td", { class: "number" }, formatWhole(each.batch)),
      make("td", {}, showVerdict(verdictOf(each, catalogue.limits(each.device)))),
      ["latency_ms", "energy_j", "memory_mb"].map((name) => figure(each, name)), make("td", {}, each.mig ?? each.no_slice)));
  return make("details", { class: "card", id: "figures" },
    make("summary", {}, make("h3", {}, `All figures as a table (${formatWhole(rows.length)} ${rows.length === 1 ? "row" : "rows"})`)),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All figures" },
      make("table", {},
        make("caption", { class: "hidden" }, "Predictions with their 90 % intervals"),
        make("thead", {}, make("tr", {}, heads.map((head, place) =>
          make("th", { scope: "col", class: FIGURES.includes(place) ? "number" : null }, head)))),
        make("tbody", {}, rows))));
}

function figure(prediction, name) {
  const value = prediction[name];
  if (value === null) return make("td", { class: "number" }, "–");
  const interval = prediction.intervals[name];
  return make("td", { class: "number" }, formatFigure(value),
    interval ? make("span", { class: "more" }, ` [${formatInterval(interval)}]`) : null);
}
