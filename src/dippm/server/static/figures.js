// Figures as the command line shows them.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** Three significant digits, thousands whole. */
export function formatFigure(value) {
  if (value >= 999.5) return WHOLE.format(value);
  return String(Number(value.toPrecision(3)));
}

/** A whole number with its thousands apart. */
export function formatWhole(value) {
  return WHOLE.format(value);
}

/** A large count with a prefix before its unit: "15.5 G". */
export function formatCount(value) {
  for (const [size, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return `${formatFigure(value / size)} ${prefix}`;
  }
  return `${Number(value.toPrecision(3))} `;
}

/** How many weights a model has, which of them are trained alone, and which are quantised. */
export function describeWeights(model) {
  const count = formatWhole(model.parameters);
  const beside = model.frozen_parameters ? `${count} trained beside ${formatWhole(model.frozen_parameters)}` : count;
  const quantised = Object.entries(model.quantised_weights).map(([type, number]) => `, ${formatWhole(number)} in ${type}`);
  return `${beside} parameters${quantised.join("")}`;
}

/** Lower and upper end: "1.2 – 1.9". */
export function formatInterval([low, high]) {
  return `${formatFigure(low)} – ${formatFigure(high)}`;
}

/** Sizes joined by ×. */
export function formatShape(shape) {
  return shape.length ? shape.join("×") : "scalar";
}

/** The size of a file. */
export function formatBytes(bytes) {
  if (bytes >= 2 ** 20) return `${formatFigure(bytes / 2 ** 20)} MiB`;
  return bytes >= 1024 ? `${formatFigure(bytes / 1024)} KiB` : `${bytes} bytes`;
}
