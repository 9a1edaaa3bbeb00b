/** Where text is typed, pasted, dropped or taken from a file, and how far it has come. */

import { byId } from "./element.js";
import { bytes } from "./words.js";

const MOST_FILE_BYTES = 16e6;
const STATES = { paused: "paused", stopping: "stopping …", failed: "stopped by a problem" };

export class Composer {
  #text = byId("text");
  #reading = null;
  #give;

  /** `give(text, { learn, name })` sends a text; false where it could not be taken. `stopped` hears of the end. */
  constructor({ give, stopped, refused }) {
    this.#give = give;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#giveTyped();
    });
    this.#text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        byId("composer").requestSubmit();
      }
    });
    byId("file-button").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", () => {
      const [file] = byId("file").files;
      if (file) this.#giveFile(file, refused);
      byId("file").value = "";
    });
    this.#text.addEventListener("dragover", (event) => {
      if (event.dataTransfer.types.includes("Files")) event.preventDefault();
    });
    this.#text.addEventListener("drop", (event) => {
      const [file] = event.dataTransfer.files;
      if (!file) return;
      event.preventDefault();
      this.#giveFile(file, refused);
    });
    byId("pause").addEventListener("click", () => {
      const { outbox } = this.#reading;
      if (outbox.state === "paused" || outbox.state === "failed") outbox.resume();
      else outbox.pause();
    });
    byId("stop").addEventListener("click", () => stopped(this.#reading));
    setInterval(() => this.#tell(), 1000);
  }

  /** Show how far a reading's text has come; null shows none. */
  show(reading) {
    this.#reading = reading;
    this.#tell();
  }

  /** Put a text into the box, and what was typed meanwhile after it. */
  put(text) {
    this.#text.value = text + this.#text.value;
  }

  focus() {
    this.#text.focus();
  }

  async #giveTyped() {
    const text = this.#text.value;
    if (text === "") {
      this.focus();
      return;
    }
    byId("send").disabled = true;
    this.#text.value = "";
    if (!(await this.#give(text, { learn: byId("learn").checked, name: null }))) this.put(text);
    byId("send").disabled = false;
  }

  async #giveFile(file, refused) {
    if (file.size > MOST_FILE_BYTES) {
      refused("The file is too large.", `${file.name} has ${bytes(file.size)}; up to ${bytes(MOST_FILE_BYTES)} are read here.`);
      return;
    }
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    } catch {
      refused("The file is not text.", `${file.name} cannot be read as UTF-8.`);
      return;
    }
    await this.#give(text, { learn: byId("learn").checked, name: file.name });
  }

  #tell() {
    const outbox = this.#reading?.outbox;
    byId("sending").hidden = !outbox?.isBusy;
    if (!outbox?.isBusy) return;
    byId("progress").value = outbox.sentBytes / outbox.totalBytes;
    byId("sent").textContent = `${bytes(outbox.sentBytes)} of ${bytes(outbox.totalBytes)}${stateOf(outbox)}`;
    byId("pause").textContent = outbox.state === "paused" || outbox.state === "failed" ? "Go on" : "Pause";
    byId("pause").disabled = byId("stop").disabled = outbox.state === "stopping";
  }
}

function stateOf(outbox) {
  if (outbox.state === "waiting") {
    const seconds = Math.max(0, Math.ceil((outbox.retryAt - Date.now()) / 1000));
    return ` · ${outbox.problem.title} Again in ${seconds} s`;
  }
  return STATES[outbox.state] ? ` · ${STATES[outbox.state]}` : "";
}
