/** What a screen reader hears of work that goes on: the newest sentence, and seldom. */

const QUIET_MS = 6000;

export class Announcer {
  #region;
  #next = null;
  #timer = null;

  constructor(region) {
    this.#region = region;
  }

  /** Say a sentence soon; of several in a short time the last. */
  say(sentence) {
    this.#next = sentence;
    if (this.#timer !== null) return;
    this.#utter();
    this.#timer = setInterval(() => this.#utter(), QUIET_MS);
  }

  #utter() {
    if (this.#next === null) {
      clearInterval(this.#timer);
      this.#timer = null;
      return;
    }
    this.#region.textContent = this.#next;
    this.#next = null;
  }
}
