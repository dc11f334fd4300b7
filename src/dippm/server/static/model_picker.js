// Chooses the model: a file that is dropped or opened, or a name.

import { find, make } from "./elements.js";
import { formatBytes } from "./figures.js";
import { Refusal } from "./service.js";

/** Names whose graphs come with dippm, so that they are answered at once. */
export const NAMES = [
  "timm:convnext_tiny", "timm:efficientnet_b0", "timm:mobilenetv3_large_100", "timm:resnet18", "timm:resnet50",
  "timm:swin_tiny_patch4_window7_224", "timm:vit_base_patch16_224", "timm:vit_small_patch16_224",
  "timm:vit_tiny_patch16_224", "torchvision:densenet121", "torchvision:mobilenet_v3_large", "torchvision:resnet18",
  "torchvision:resnet50", "torchvision:vgg16", "torchvision:vit_b_16",
];

// TensorFlow runs code of theirs while it loads them.
const PROGRAMS = [".keras", ".h5"];
// Mostly a program of TensorFlow as well, but it may be ONNX: the service looks into it.
const UNOFFERED = [".pb"];

/** Binds the fields of the page. `onFile()` is called when one is chosen, `onWrong(refusal)` when it is none. */
export class ModelPicker {
  #input = find("file");
  #name = find("name");
  #drop = find("drop");
  #chosen = find("chosen");
  #file = null;
  #wrong = null;
  #onFile;
  #onWrong;

  constructor({ onFile, onWrong }) {
    this.#onFile = onFile;
    this.#onWrong = onWrong;
    find("names").append(...NAMES.map((value) => make("option", { value })));
    this.#input.addEventListener("change", () => this.#take(this.#input.files[0]));
    this.#name.addEventListener("input", () => this.#name.value && this.#set(null));
    find("unchoose").addEventListener("click", () => {
      this.#set(null);
      this.#input.focus();
    });
    this.#listen();
  }

  get file() {
    return this.#file;
  }

  /** Why what was dropped or chosen last was not taken; null where nothing was, or something else is chosen by now. */
  get wrong() {
    return this.#wrong;
  }

  get name() {
    return this.#file ? "" : this.#name.value.trim();
  }

  /** Show a model by name; the file stays where it is the one that is meant. */
  show({ name, file }) {
    this.#name.value = name;
    this.#wrong = null;
    if (this.#file?.name !== file) this.#set(null);
  }

  // Anywhere on the page, so that a file dropped beside the field does not replace the page.
  #listen() {
    addEventListener("dragover", (event) => {
      event.preventDefault();
      this.#drop.classList.add("over");
    });
    addEventListener("dragleave", (event) => !event.relatedTarget && this.#drop.classList.remove("over"));
    addEventListener("drop", (event) => {
      event.preventDefault();
      this.#drop.classList.remove("over");
      const [item] = event.dataTransfer.items;
      if (item?.webkitGetAsEntry?.()?.isDirectory) {
        this.#refuse("A folder cannot be sent as it is.", "Pack it as a .zip and drop that.");
      } else if (event.dataTransfer.files.length > 1) {
        this.#refuse("These are several files, and a question is about one model.", "Pack a model beside its weights as a .zip and drop that.");
      } else this.#take(event.dataTransfer.files[0]);
    });
  }

  #take(file) {
    if (!file) return;
    // The service says so as well, but only once the file is sent.
    const offered = this.#input.accept.split(",");
    const isOneOf = (extensions) => extensions.some((extension) => file.name.toLowerCase().endsWith(extension));
    if (!isOneOf([...offered, ...UNOFFERED])) {
      this.#set(null);
      if (isOneOf(PROGRAMS)) {
        this.#refuse(`'${file.name}' is not taken here: TensorFlow runs code of a Keras file while it loads it.`,
          "Convert it to .tflite or .onnx, or ask dippm predict on your own machine, with a model that you trust.", "page.program");
      } else this.#refuse(`'${file.name}' is not of a kind that is read.`, `Choose one of ${offered.join(", ")}.`);
      return;
    }
    this.#set(file);
    this.#name.value = "";
    this.#onFile();
  }

  #refuse(message, cure, code = "page.file") {
    this.#wrong = new Refusal({ status: 0, code, message, cure });
    this.#onWrong(this.#wrong);
  }

  #set(file) {
    this.#file = file;
    this.#wrong = null;
    this.#chosen.hidden = file === null;
    find("chosen-name").textContent = file ? `${file.name} (${formatBytes(file.size)})` : "";
    if (!file) this.#input.value = "";
  }
}
