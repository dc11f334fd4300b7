// What predictions cannot vouch for, each warning once.

import { make } from "./elements.js";
import { formatWhole } from "./figures.js";

/** Warnings of all predictions in the order of each; those that differ in their figures alone stand once, with where they hold. */
export function groupWarnings(predictions) {
  const groups = new Map();
  const order = [];
  for (const prediction of predictions) {
    let place = order.length;
    for (const warning of [...prediction.predictor.warnings].reverse()) {
      const key = warning.replaceAll(prediction.device, "#").replace(/\d[\d.,]*/g, "#");
      if (groups.has(key)) {
        place = order.indexOf(key);
      } else {
        groups.set(key, []);
        order.splice(place, 0, key);
      }
      groups.get(key).push({ warning, prediction });
    }
  }
  return order.map((key) => {
    const found = groups.get(key);
    const [{ warning, prediction }] = found;
    const others = new Set(found.map((each) => each.warning)).size - 1;
    const isEverywhere = found.length === predictions.length;
    const where = isEverywhere ? "" : `${prediction.device}, batch ${formatWhole(prediction.batch)}: `;
    const more = isEverywhere ? others : found.length - 1;
    return `${where}${warning}${more ? ` (and ${formatWhole(more)} more like it)` : ""}`;
  });
}

/** The section of warnings and of what the predictions rest on. */
export function showNotes({ predictions }) {
  const warnings = groupWarnings(predictions);
  const bases = new Map(predictions.map(({ predictor }) => [`${predictor.name} ${predictor.version}`, predictor.labels]));
  return make("section", { class: "card notes", "aria-labelledby": "notes-title" },
    make("h3", { id: "notes-title" }, "What to know about these figures"),
    warnings.length ? make("ul", {}, warnings.map((warning) => make("li", {}, warning))) : null,
    [...bases].map(([name, labels]) => make("p", { class: "hint" }, make("strong", {}, name), `, fitted on ${labels}`)));
}
