// Shows that something is under way, how far it is, and takes the wish to stop it.

import { find } from "./elements.js";
import { formatBytes } from "./figures.js";

const TICK_MS = 1000;

/** What runs on behalf of the form; one thing at a time. */
export class Progress {
  #bar = find("progress-bar");
  #text = find("progress-text");
  #timer = null;
  #started = 0;
  #words = "";

  constructor(onCancel) {
    find("cancel").addEventListener("click", onCancel);
  }

  begin() {
    this.#started = Date.now();
    this.#toggle(true);
    this.#say("Asking");
    clearInterval(this.#timer);
    this.#timer = setInterval(() => this.#say(this.#words), TICK_MS);
  }

  /** So much of a file of this size is sent. */
  send(part, size) {
    if (part < 1) {
      this.#bar.value = part;
      this.#say(`Sending ${formatBytes(size)}`);
    } else {
      this.#bar.removeAttribute("value");
      this.#say("Reading the model");
    }
  }

  end() {
    clearInterval(this.#timer);
    this.#toggle(false);
  }

  #say(words) {
    this.#words = words;
    const seconds = Math.round((Date.now() - this.#started) / 1000);
    this.#text.textContent = seconds ? `${words}, ${seconds} s` : `${words} …`;
  }

  #toggle(isRunning) {
    this.#bar.removeAttribute("value");
    find("progress").hidden = !isRunning;
    find("cancel").hidden = !isRunning;
    find("results").setAttribute("aria-busy", String(isRunning));
  }
}
