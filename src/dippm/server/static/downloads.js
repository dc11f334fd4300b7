// Hands answers to the person as files.

import { make } from "./elements.js";

// Those of dippm predict on a pipe, after what they hold for.
const COLUMNS = [
  ["model", (_, model) => model.source],
  ...["mode", "precision", "layout", "runtime", "software", "device", "batch"].map((name) => [name, (each) => each[name]]),
  ...[["latency", "ms"], ["energy", "j"], ["memory", "mb"]].flatMap(([name, unit]) => [
    [`${name}_${unit}`, (each) => each[`${name}_${unit}`]],
    [`${name}_low`, (each) => each.intervals[`${name}_${unit}`]?.[0]],
    [`${name}_high`, (each) => each.intervals[`${name}_${unit}`]?.[1]],
  ]),
  ["mig", (each) => each.mig ?? each.no_slice],
];

/** The predictions as CSV. */
export function toCsv({ model, predictions }) {
  const rows = predictions.map((each) => COLUMNS.map(([, read]) => cell(read(each, model))));
  return [COLUMNS.map(([name]) => name), ...rows].map((row) => `${row.join(",")}\r\n`).join("");
}

/** Save a text as a file named after the model. */
export function save(text, { type, source, extension }) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const stem = source.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-.]+/, "") || "model";
  make("a", { href: url, download: `dippm-${stem}.${extension}` }).click();
  // The browser reads it after this turn.
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  // A spreadsheet runs a text that begins so, and names of files are anybody's.
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
