// What the page says beside answers: in its live region, and why something was not answered.

import { find, make } from "./elements.js";

const OF_TRUST = "This service never runs what comes with a file. On your own machine, with a model that you trust:";
const HINTS = new Map([
  ["service.program_refused", OF_TRUST],
  ["torch.pickle_refused", OF_TRUST],
]);
const HINT_OF_EXTRA = "The package is missing where this service runs, not on your machine: whoever runs it can install it. The same on your own machine:";
const HINT_OF_SIZE = "Whoever runs the service sets the largest upload: dippm serve --max-upload-mb. The same on your own machine:";
const HINTS_BY_STATUS = new Map([[413, HINT_OF_SIZE], [501, HINT_OF_EXTRA]]);

/** Tell people who do not see the page what happened. */
export function announce(text) {
  find("status").textContent = text;
}

/** Show why a question was not answered: `{message, cure, code, status}`, a note, and the same question as a command. */
export function showError(problem, { command = null, note = null, hasFocus = true } = {}) {
  const hint = HINTS_BY_STATUS.get(problem.status) ?? HINTS.get(problem.code);
  // The cure may stand at the end of the message already: then it stands by itself alone.
  const message = problem.cure && problem.message.endsWith(problem.cure)
    ? problem.message.slice(0, -problem.cure.length).trimEnd() : problem.message;
  const panel = find("error");
  panel.hidden = false;
  panel.replaceChildren(
    make("h2", {}, "No answer"),
    ...(note ? [make("p", { class: "problem" }, note)] : []),
    make("p", { class: "message" }, message),
    ...(problem.cure ? [make("p", { class: "cure" }, make("strong", {}, "What helps: "), problem.cure)] : []),
    ...(hint && command ? [make("p", {}, hint), make("pre", { tabindex: "0", "aria-label": "Command" }, command)] : []),
    ...(problem.code ? [make("p", { class: "hint" }, make("code", {}, problem.code))] : []),
  );
  if (hasFocus) panel.focus();
}

/** Take away what was said of an earlier question. */
export function clearMessages() {
  find("error").hidden = true;
  find("wanted").hidden = true;
}

/** Ask for the file that a link is about. */
export function askForFile({ file, sha256 }, onChoose) {
  const panel = find("wanted");
  panel.hidden = false;
  panel.replaceChildren(
    make("h2", { id: "wanted-title" }, "This link is about a file on your machine"),
    make("p", {}, "Choose ", make("strong", { class: "name" }, file), " to see it: links carry a file's name and hash, never the file."),
    ...(sha256 ? [make("p", { class: "hint" }, "SHA-256 ", make("code", {}, sha256))] : []),
    make("div", { class: "actions" }, make("button", { type: "button", class: "main", onclick: onChoose }, "Choose the file")),
  );
  panel.focus();
}
