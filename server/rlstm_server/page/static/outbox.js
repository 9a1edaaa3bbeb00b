/**
 * Text on its way to a session: a piece at a time, the next when the last is answered.
 *
 * A piece is sent with a key of its own until it is answered, so that a repetition does nothing twice. Until
 * then its text counts as not sent: `stop` gives it back.
 */

import { byteLength, cut } from "./cut.js";
import { Problem, newOperation } from "./server.js";

export const MOST_BYTES = 2048;
const LEAST_BYTES = 256;
const FIRST_BYTES = 512;
/** Pieces are as large as what is answered in this time, so that scores come steadily. */
const STEADY_SECONDS = 2;
const LONGEST_WAIT_SECONDS = 30;

export class Outbox {
  #send;
  #arrived;
  #changed;
  #texts = [];
  #piece = null;
  #size = FIRST_BYTES;
  #running = null;
  #wake = () => {};

  /** idle, sending, waiting (for a repetition), paused, failed (until `resume`). */
  state = "idle";
  problem = null;
  retryAt = 0;
  sentBytes = 0;
  totalBytes = 0;

  /** `send` sends a piece and gives the answer; `arrived` takes both; `changed` hears of a new state. */
  constructor({ send, arrived, changed }) {
    this.#send = send;
    this.#arrived = arrived;
    this.#changed = changed;
  }

  get isBusy() {
    return this.state !== "idle";
  }

  /** Add a text to the end. `name` is the file's that it came from: a file is not given back. */
  add(text, { learn, name = null }) {
    if (!text) return;
    if (!this.isBusy) this.sentBytes = this.totalBytes = 0;
    this.#texts.push({ text, at: 0, learn, name });
    this.totalBytes += byteLength(text);
    if (this.state === "idle") this.resume();
    else this.#changed();
  }

  /** Send no further piece; the one under way is answered. */
  pause() {
    if (this.state === "sending" || this.state === "waiting") this.#become("paused");
  }

  /** Go on, with the piece that failed if one did. */
  resume() {
    this.problem = null;
    this.#become("sending");
    this.#running ??= this.#run();
  }

  /** End here. Gives back what was typed and not read; `isUnsure` where its beginning may have been read. */
  async stop() {
    if (!this.isBusy) return { text: "", isUnsure: false };
    this.#become("stopping");
    await this.#running;
    const text = this.#texts.filter(({ name }) => name === null).map((one) => one.text.slice(one.at)).join("");
    const isUnsure = this.#piece !== null && this.problem?.applied === "unknown";
    this.#texts = [];
    this.#piece = this.problem = null;
    this.#become("idle");
    return { text, isUnsure };
  }

  #become(state) {
    this.state = state;
    this.#wake();
    this.#changed();
  }

  async #run() {
    for (let failures = 0; this.state === "sending" && this.#texts.length > 0; ) {
      this.#piece ??= this.#next();
      const began = performance.now();
      try {
        const answer = await this.#send(this.#piece);
        this.#fit(this.#piece.bytes / ((performance.now() - began) / 1000));
        failures = 0;
        this.problem = null;
        this.#take(answer);
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        failures += 1;
        await this.#put(problem, failures);
      }
    }
    this.#running = null;
    if (this.#texts.length === 0 && this.state !== "stopping") this.#become("idle");
  }

  #next() {
    const one = this.#texts[0];
    const end = cut(one.text, one.at, this.#size);
    return {
      text: one.text.slice(one.at, end),
      bytes: byteLength(one.text, one.at, end),
      end,
      learn: one.learn,
      isFinal: end === one.text.length,
      operation: newOperation(),
    };
  }

  #take(answer) {
    const piece = this.#piece;
    this.#piece = null;
    this.#texts[0].at = piece.end;
    if (piece.isFinal) this.#texts.shift();
    this.sentBytes += piece.bytes;
    this.#arrived(piece, answer);
    this.#changed();
  }

  #fit(bytesPerSecond) {
    this.#size = Math.round(Math.min(MOST_BYTES, Math.max(LEAST_BYTES, bytesPerSecond * STEADY_SECONDS)));
  }

  async #put(problem, failures) {
    this.problem = problem;
    if (!problem.isPassing) {
      if (this.state === "sending") this.#become("failed");
      return;
    }
    if (this.state !== "sending") return;
    const seconds = problem.retryAfter ?? Math.min(2 ** (failures - 1), LONGEST_WAIT_SECONDS);
    this.retryAt = Date.now() + seconds * 1000;
    this.#become("waiting");
    await new Promise((wake) => {
      this.#wake = wake;
      setTimeout(wake, seconds * 1000);
    });
    this.#wake = () => {};
    if (this.state === "waiting") this.#become("sending");
  }
}
