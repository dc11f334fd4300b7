// Brings the page together: a question becomes a request, its answer a view, and both a link.

import { AnswerView } from "./answer_view.js";
import { Catalogue } from "./catalogue.js";
import { DevicePicker } from "./device_picker.js";
import { find } from "./elements.js";
import { announce, askForFile, clearMessages, showError } from "./messages.js";
import { ModelPicker } from "./model_picker.js";
import { Progress } from "./progress.js";
import { QuestionForm } from "./question_form.js";
import { checkName, DEFAULTS, fromFragment, inspectOptions, maxBatchOptions, predictOptions, toCommand, toFragment, WrongQuestion } from "./question.js";
import { Cancelled, Service } from "./service.js";
import { askToken } from "./token_dialog.js";

// A larger file is sent again only when a person asks for more of it.
const LARGE_BYTES = 32 * 2 ** 20;

const service = new Service(askToken);
const progress = new Progress(() => {
  running?.abort();
  find("predict").focus();
});
const devices = new DevicePicker(announce);
const models = new ModelPicker({ onFile: take, onWrong: (problem) => explain(problem) });
const form = new QuestionForm({ models, devices, onAsk: () => ask(() => form.read()) });

let catalogue = null;
let running = null;
let shown = null;
// What is asked beside the answer that is shown.
let more = new AbortController();
// What a link asks for that waits for its file.
let wanted = null;

find("skip").addEventListener("click", (event) => {
  event.preventDefault();
  (find("answer-title") ?? find("results")).focus();
});
addEventListener("hashchange", () => open());
begin();

async function begin() {
  form.show(DEFAULTS);
  try {
    await loadCatalogue();
  } catch (problem) {
    showError(problem);
    return;
  }
  // A question that was asked meanwhile goes on.
  if (!running) open();
}

async function loadCatalogue() {
  if (catalogue) return;
  catalogue = new Catalogue(await service.devices());
  devices.offer(catalogue.choices());
}

/** Show what the page's address asks for. */
function open() {
  running?.abort();
  clearMessages();
  wanted = null;
  let link;
  try {
    link = fromFragment(location.hash);
  } catch (problem) {
    explain({ message: problem.message, code: "page.link" });
    return;
  }
  if (!link) {
    showWelcome();
    return;
  }
  // Where the catalogue could not be had, the service finds the names; a question is asked for it first.
  const properName = (name) => catalogue?.properName(name) ?? name;
  const question = { ...link.question, device: [...new Set(link.question.device.map(properName))] };
  const view = { ...link.view, of: link.view.of && properName(link.view.of) };
  form.show(question);
  if (question.file && models.file?.name !== question.file) {
    showWelcome();
    wanted = { question, view };
    askForFile(question, () => find("file").click());
  } else ask(() => question, { view, sha256: question.sha256, isLink: true });
}

/** A file was dropped or chosen: ask at once; it may be the one that a link waits for. */
function take() {
  const link = wanted;
  ask(() => form.read(), link ? { view: link.view, sha256: link.question.sha256 } : {});
}

async function ask(readQuestion, { view = shown?.view ?? {}, sha256 = null, isLink = false } = {}) {
  running?.abort();
  const mine = new AbortController();
  running = mine;
  clearMessages();
  form.clearMarks();
  let question = null;
  try {
    question = readQuestion();
    if (!question.file) checkName(question.model);
    progress.begin();
    announce("Asking the service.");
    await loadCatalogue();
    const subject = question.file ? { file: models.file } : { model: question.model };
    const onProgress = (part) => subject.file && running === mine && progress.send(part, subject.file.size);
    const found = await service.ask("predict", subject, predictOptions(question), { signal: mine.signal, onProgress });
    if (running !== mine) return;
    question = { ...question, sha256: found.sha256 ?? "" };
    wanted = null;
    show({ ...found, question, subject, view, note: compare(found, sha256), isLink });
  } catch (problem) {
    if (running === mine) tell(problem, { question, note: compare(problem, sha256) });
  } finally {
    if (running === mine) progress.end();
  }
}

/** What to say where the service read another file than the one of a link. */
function compare(found, sha256) {
  const isOther = sha256 && found.sha256 && found.sha256 !== sha256;
  return isOther ? "This is another file than the link is about: its SHA-256 differs." : null;
}

function show({ answer, text, question, subject, view, note, isLink }) {
  stopMore();
  const fileSize = subject.file?.size ?? 0;
  const mine = new AnswerView({
    answer, text, question, catalogue, view, fileSize,
    onView: (changed) => history.replaceState(null, "", toFragment(question, changed)),
    inspect: ({ signal, ...looked }) => service.ask("inspect", subject, inspectOptions(question, looked), { signal }),
  });
  shown = mine;
  const fragment = toFragment(question, mine.view);
  if (isLink) history.replaceState(null, "", fragment);
  else if (location.hash !== fragment) history.pushState(null, "", fragment);
  find("welcome").hidden = true;
  find("answer").hidden = false;
  find("answer").replaceChildren(mine.element(note));
  document.title = `${answer.model.source} – dippm`;
  announce(mine.sentence());
  find("answer-title").focus();
  mine.start();
  if (fileSize <= LARGE_BYTES) {
    more = new AbortController();
    service.ask("max-batch", subject, maxBatchOptions(question), { signal: more.signal }).then(
      (found) => mine.showLargest(found.answer.max_batches), () => mine.showLargest(null));
  } else mine.showLargest(null);
}

function stopMore() {
  shown?.stop();
  more.abort();
}

function showWelcome() {
  stopMore();
  shown = null;
  find("answer").hidden = true;
  find("welcome").hidden = false;
  document.title = "dippm";
}

/** Show why a question has no answer; an answer that stands on the page is of another one. */
function explain(problem, options) {
  shown?.markPrevious();
  showError(problem, options);
}

function tell(problem, { question, note }) {
  if (problem instanceof Cancelled) {
    announce("Cancelled.");
    return;
  }
  if (problem instanceof WrongQuestion) {
    explain({ message: problem.message, code: null }, { hasFocus: false });
    form.mark(problem.field)?.focus();
    return;
  }
  if (!problem.code) {
    // A defect of this page: told, and left for the console as well.
    explain({ message: `The page failed: ${problem.message}`, code: "page.defect" });
    throw problem;
  }
  form.mark(problem.code.split(".")[0]);
  explain(problem, { command: question && toCommand(question), note });
}
