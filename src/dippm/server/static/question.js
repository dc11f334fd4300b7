// What is asked: its form in links, in requests to the service, and on the command line.

/** Names of options as the service has them; a link says what differs from these. */
export const DEFAULTS = Object.freeze({
  model: "",
  file: "",
  sha256: "",
  device: Object.freeze(["A100-SXM4-40GB"]),
  batch: Object.freeze([1, 2, 4, 8, 16, 32, 64, 128]),
  mode: "inference",
  precision: "",
  weights: "",
  optimizer: "momentum",
  accumulation: 1,
  checkpointing: false,
  lora: "",
  input: "",
  framework: "",
  layout: "nchw",
  runtime: "eager",
  mig_policy: "safe",
  software: "",
});

const OF_TRAINING = ["optimizer", "accumulation", "checkpointing", "lora"];
const TEXTS = ["mode", "precision", "weights", "layout", "runtime", "mig_policy", "framework", "software", "optimizer", "lora"];

/** A name, batch or input that is none. */
export class WrongQuestion extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** Throws `WrongQuestion` where no library's prefix stands before a model's name. */
export function checkName(name) {
  if (/^(timm|torchvision|hf|diffusers):./.test(name)) return;
  throw new WrongQuestion("name", `Names begin with timm:, torchvision:, hf: or diffusers: – timm:resnet50, for example. Got '${name}' instead.`);
}

/** The sizes in "1, 8, 32", each once, in order. */
export function parseBatches(text) {
  const parts = text.split(/[,;\s]+/).filter(Boolean);
  const sizes = parts.map((part) => (/^\d{1,9}$/.test(part) ? Number(part) : 0));
  if (!parts.length || sizes.includes(0)) {
    throw new WrongQuestion("batch", `Batch sizes must be whole numbers above 0, joined by commas, such as 1, 8, 32. Got '${text}' instead.`);
  }
  return [...new Set(sizes)].sort((a, b) => a - b);
}

/** Lines of `[NAME=]SHAPE[:DTYPE]` as the service takes them. */
export function parseInputs(text) {
  const lines = text.split(/[\n;]+/).map((line) => line.trim()).filter(Boolean);
  if (!lines.length) return null;
  const named = lines.filter((line) => line.includes("="));
  if (!named.length) return lines.length === 1 ? lines[0] : lines;
  if (named.length < lines.length) throw new WrongQuestion("input", "Either all inputs have a name or none has.");
  // A shape has no "=", so that the last one ends the name.
  const entries = lines.map((line) => [line.slice(0, line.lastIndexOf("=")).trim(), line.slice(line.lastIndexOf("=") + 1).trim()]);
  if (new Set(entries.map(([name]) => name)).size < entries.length) throw new WrongQuestion("input", "An input is given twice.");
  return Object.fromEntries(entries);
}

/** The options of a request that predicts. */
export function predictOptions(question) {
  return { ...commonOptions(question), batch: question.batch, device: question.device };
}

/** The options of a request that looks into one prediction. */
export function inspectOptions(question, { device, batch, top }) {
  return { ...commonOptions(question), device, batch, top };
}

/** The options of a request for the largest batches. */
export function maxBatchOptions(question) {
  const { mig_policy: _, ...options } = commonOptions(question);
  return { ...options, device: question.device };
}

function commonOptions(question) {
  const options = { input: parseInputs(question.input) };
  for (const name of [...TEXTS, ...OF_TRAINING]) {
    if (question.mode === "training" || !OF_TRAINING.includes(name)) options[name] = question[name];
  }
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== null && value !== ""));
}

/** The question and what is looked at of its answer (`view`), as the fragment of a link. */
export function toFragment(question, view = {}) {
  const words = new URLSearchParams();
  for (const name of question.file ? ["file", "sha256"] : ["model"]) if (question[name]) words.set(name, question[name]);
  for (const name of question.device) words.append("device", name);
  words.set("batch", question.batch.join(","));
  for (const [name, value] of Object.entries(DEFAULTS)) {
    if (["model", "file", "sha256", "device", "batch"].includes(name) || String(question[name]) === String(value)) continue;
    if (question.mode === "training" || !OF_TRAINING.includes(name)) words.set(name, question[name]);
  }
  for (const [name, value] of Object.entries(view)) if (value !== null && value !== "") words.set(name, value);
  // These mean nothing special in a fragment, and links are read by people.
  return `#${words.toString().replace(/%3A/g, ":").replace(/%2C/g, ",").replace(/%40/g, "@").replace(/%2F/g, "/")}`;
}

/** The question and view of a link; null where the fragment holds none. */
export function fromFragment(fragment) {
  const words = new URLSearchParams(fragment.replace(/^#/, ""));
  if (!words.has("model") && !words.has("file")) return null;
  const question = { ...DEFAULTS };
  for (const name of ["model", "file", "sha256", "input", ...TEXTS]) if (words.has(name)) question[name] = words.get(name);
  if (words.has("device")) question.device = [...new Set(words.getAll("device"))];
  if (words.has("batch")) question.batch = parseBatches(words.get("batch"));
  if (words.has("accumulation")) question.accumulation = Number(words.get("accumulation"));
  question.checkpointing = words.get("checkpointing") === "true";
  if (question.file) question.model = "";
  return { question, view: { at: Number(words.get("at")) || null, of: words.get("of"), show: words.get("show") } };
}

/** The same question on the command line. */
export function toCommand(question) {
  const words = ["dippm", "predict", quote(question.file || question.model)];
  const add = (name, value) => words.push(`--${name.replaceAll("_", "-")}`, quote(String(value)));
  add("device", question.device.join(","));
  add("batch", question.batch.join(","));
  for (const line of question.input.split(/[\n;]+/).map((each) => each.trim()).filter(Boolean)) add("input", line);
  for (const name of [...TEXTS, "accumulation"]) {
    const isOfMode = question.mode === "training" || !OF_TRAINING.includes(name);
    if (isOfMode && question[name] !== DEFAULTS[name]) add(name, question[name]);
  }
  if (question.mode === "training" && question.checkpointing) words.push("--checkpointing");
  return words.join(" ");
}

function quote(word) {
  if (/^[A-Za-z0-9_:@%+=,./][A-Za-z0-9_:@%+=,./-]*$/.test(word)) return word;
  const plain = word.startsWith("-") ? `./${word}` : word;
  return `'${plain.replaceAll("'", "'\\''")}'`;
}
