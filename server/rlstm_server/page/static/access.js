/** The key that a server may ask for. */

import { byId } from "./element.js";
import { keyOf } from "./server.js";

export class Access {
  #waiting = new Set();

  /** `forgotten` hears that the key was given up. */
  constructor(forgotten) {
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#use(byId("key").value);
    });
    byId("forget-key").addEventListener("click", () => {
      keyOf.forget();
      this.#show();
      forgotten();
    });
    this.#show();
  }

  /** Ask for a key, and then do what lacked it. */
  need(then) {
    this.#waiting.add(then);
    const isWrong = keyOf.get() !== null;
    keyOf.forget();
    this.#show();
    byId("key-problem").textContent = isWrong ? "The server does not know this key." : "";
    byId("key-problem").hidden = !isWrong;
    byId("key-form").hidden = false;
    byId("key").focus();
  }

  #use(key) {
    keyOf.set(key.trim());
    byId("key").value = "";
    byId("key-form").hidden = true;
    this.#show();
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const then of waiting) then();
  }

  #show() {
    byId("forget-key").hidden = keyOf.get() === null;
  }
}
