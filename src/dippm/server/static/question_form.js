// The form: reads a question from its fields, shows one in them, and points at the field that is wrong.

import { find } from "./elements.js";
import { DEFAULTS, parseBatches, parseInputs, WrongQuestion } from "./question.js";

const PLAIN = ["mode", "precision", "weights", "optimizer", "lora", "input", "framework", "layout", "runtime", "mig_policy", "software"];

/** Binds the form of the page; model and devices have pickers of their own. */
export class QuestionForm {
  #form = find("question");
  #models;
  #devices;

  constructor({ models, devices, onAsk }) {
    this.#models = models;
    this.#devices = devices;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      onAsk();
    });
    find("mode").addEventListener("change", () => this.#showMode());
    this.#form.addEventListener("input", (event) => event.target.removeAttribute("aria-invalid"));
  }

  /** The question that the fields hold. Throws `WrongQuestion`, or why the chosen file was not taken. */
  read() {
    const { file, name } = this.#models;
    if (!file && !name) throw this.#models.wrong ?? new WrongQuestion("name", "There is no model: drop a file, or give a name such as timm:resnet50.");
    if (!this.#devices.names.length) throw new WrongQuestion("device", "There is no device: choose at least one.");
    const accumulation = Number(find("accumulation").value);
    if (!Number.isInteger(accumulation) || accumulation < 1) {
      throw new WrongQuestion("accumulation", "Gradient accumulation (batches a step) must be a whole number above 0.");
    }
    const question = {
      ...DEFAULTS,
      model: name,
      file: file?.name ?? "",
      device: this.#devices.names,
      batch: parseBatches(find("batch").value),
      accumulation,
      checkpointing: find("checkpointing").checked,
      ...Object.fromEntries(PLAIN.map((option) => [option, find(option).value.trim()])),
    };
    parseInputs(question.input);
    return question;
  }

  /** Show a question. */
  show(question) {
    this.#models.show({ name: question.model, file: question.file });
    this.#devices.names = question.device;
    find("batch").value = question.batch.join(", ");
    find("accumulation").value = question.accumulation;
    find("checkpointing").checked = question.checkpointing;
    for (const option of PLAIN) find(option).value = question[option];
    const folded = ["input", "framework", "layout", "runtime", "mig_policy", "software"];
    if (folded.some((option) => question[option] !== DEFAULTS[option])) find("more").open = true;
    this.#showMode();
    this.clearMarks();
  }

  /** Mark the field that an error is about, unfolding it; whether there is one. */
  mark(name) {
    const field = find(name === "model" || name === "zoo" ? "name" : name);
    if (!field || !this.#form.contains(field) || !field.matches("input, select, textarea")) return null;
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-errormessage", "error");
    const folded = field.closest("details");
    if (folded) folded.open = true;
    return field;
  }

  clearMarks() {
    for (const field of this.#form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  }

  #showMode() {
    find("training").hidden = find("mode").value !== "training";
  }
}
