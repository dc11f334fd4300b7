// Asks the service.

import { formatBytes } from "./figures.js";

const TOKEN_KEY = "dippm-token";
const MOST_SAFE_BYTES = 2 ** 20;

/** Why a question was not answered, in the service's words; `sha256` is the hash of the file that it read. */
export class Refusal extends Error {
  constructor({ status, code, message, cure = null, sha256 = null }) {
    super(message);
    this.status = status;
    this.code = code;
    this.cure = cure;
    this.sha256 = sha256;
  }
}

/** A question that its asker gave up. */
export class Cancelled extends Error {}

/**
 * The service, with its token where it wants one.
 * `askToken(isWrong)` promises a token, or nothing where the person has none.
 */
export class Service {
  #askToken;
  #token = readToken();
  #asked = null;

  constructor(askToken) {
    this.#askToken = askToken;
  }

  /** The catalogue. */
  async devices() {
    return (await this.#send({ method: "GET", path: "v1/devices" })).answer.devices;
  }

  /**
   * Ask about a model: `subject` is `{model}` by name, or `{file}`.
   * Promises `{answer, text, sha256}`: what was answered, as it came, and the hash of the file.
   */
  async ask(verb, subject, options, { signal, onProgress } = {}) {
    const path = `v1/${verb}`;
    if (!subject.file) {
      const body = JSON.stringify({ model: subject.model, ...options });
      return this.#send({ method: "POST", path, body, type: "application/json", signal, onProgress });
    }
    const form = new FormData();
    form.append("options", JSON.stringify(options));
    form.append("file", subject.file, subject.file.name);
    return this.#send({ method: "POST", path, body: form, size: subject.file.size, signal, onProgress });
  }

  async #send(request) {
    for (;;) {
      const token = this.#token;
      const response = await send({ ...request, token });
      if (response.status !== 401) return read(response);
      // Several questions may be under way: one person is asked once.
      if (token === this.#token) {
        this.#asked ??= this.#askToken(token !== null).finally(() => (this.#asked = null));
        const given = await this.#asked;
        if (given === null) return read(response);
        this.#token = given;
        keepToken(given);
      }
    }
  }
}

function send({ method, path, body = null, type = null, size = 0, token, signal, onProgress }) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(new Cancelled());
    // Not fetch: only this tells how much of a file is sent.
    const request = new XMLHttpRequest();
    request.open(method, new URL(path, document.baseURI));
    if (type) request.setRequestHeader("Content-Type", type);
    if (token !== null) request.setRequestHeader("Authorization", `Bearer ${token}`);
    if (onProgress) {
      request.upload.addEventListener("progress", (event) => onProgress(event.loaded / event.total));
      request.upload.addEventListener("load", () => onProgress(1));
    }
    request.addEventListener("load", () => resolve(request));
    request.addEventListener("error", () => reject(new Refusal(explainLoss(size))));
    request.addEventListener("abort", () => reject(new Cancelled()));
    signal?.addEventListener("abort", () => request.abort(), { once: true });
    request.send(body);
  });
}

function read(request) {
  let answer = null;
  try {
    answer = JSON.parse(request.responseText);
  } catch {
    // Told below: something between this page and the service may have answered.
  }
  const sha256 = request.getResponseHeader("X-Dippm-File-Sha256");
  if (request.status === 200 && answer !== null) return { answer, text: request.responseText, sha256 };
  if (answer?.error) throw new Refusal({ status: request.status, sha256, ...answer.error });
  throw new Refusal({
    status: request.status,
    code: "page.unreadable",
    message: `The answer could not be read (HTTP status ${request.status}).`,
    cure: "A proxy may have answered in place of the service. Try again.",
  });
}

function explainLoss(size) {
  if (size > MOST_SAFE_BYTES) {
    return {
      status: 0,
      code: "page.connection",
      message: `The connection ended while the file (${formatBytes(size)}) was sent or read.`,
      cure: "The service may not take files of this size (dippm serve --max-upload-mb sets the largest), or was stopped. Leave the weights out where the format allows it, or run dippm on your own machine.",
    };
  }
  return {
    status: 0,
    code: "page.connection",
    message: "The service cannot be reached.",
    cure: "See whether dippm serve still runs and whether you are connected, then try again.",
  };
}

function readToken() {
  try {
    return sessionStorage.getItem(TOKEN_KEY);
  } catch {
    return null;
  }
}

function keepToken(token) {
  try {
    sessionStorage.setItem(TOKEN_KEY, token);
  } catch {
    // Storage may be forbidden: then the token holds until the page is left.
  }
}
