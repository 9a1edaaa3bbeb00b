/** The list of sessions, and what can be done with each. */

import { byId, element } from "./element.js";
import { ask } from "./server.js";
import { bits, bytes, called } from "./words.js";

const PAGE = 100;
const ACTIONS = [["fork", "Fork"], ["reset", "Reset"], ["delete", "Delete"]];

export class SessionList {
  #list = byId("sessions");
  #more = byId("more-sessions");
  #items = new Map();
  #cursor = null;
  #openId = null;
  #act;

  /** `act(verb, session)` does what was asked for: open, fork, reset or delete. */
  constructor(act) {
    this.#act = act;
    this.#list.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.#act(button.dataset.verb, this.#items.get(button.closest("li").dataset.id).session);
    });
  }

  /** Fetch the first page again. Raises Problem. */
  async refresh() {
    const page = await ask("GET", `sessions?limit=${PAGE}`);
    this.#list.replaceChildren();
    this.#items.clear();
    this.#add(page);
  }

  /** Fetch the next page. Raises Problem. */
  async more() {
    this.#add(await ask("GET", `sessions?limit=${PAGE}&cursor=${encodeURIComponent(this.#cursor)}`));
  }

  /** Show a session as it is now, at the end if it is new. */
  put(session) {
    const known = this.#items.get(session.id);
    const item = known ?? this.#item(session);
    item.session = session;
    const { name, facts, buttons } = item;
    name.textContent = called(session);
    const { totals } = session;
    facts.textContent = totals.bytes === 0 ? "nothing read yet" : `${bytes(totals.bytes)} · ${totals.gain === null ? "static is not kept" : `saved ${bits(totals.gain)}`}`;
    for (const [button, title] of buttons) button.setAttribute("aria-label", `${title} ${called(session)}`);
    if (!known) this.#list.append(item.element);
    this.#settle();
  }

  /** Take a session off the list. Gives the element that keyboards go on from. */
  remove(id) {
    this.#items.get(id)?.element.remove();
    this.#items.delete(id);
    this.#settle();
  }

  /** Mark the session that is open; null for none. */
  markOpen(id) {
    this.#openId = id;
    for (const [one, { name }] of this.#items) name.parentElement.ariaCurrent = one === id ? "true" : null;
    this.#items.get(id)?.element.scrollIntoView({ block: "nearest" });
  }

  #add(page) {
    for (const session of page.sessions) this.put(session);
    this.#cursor = page.cursor;
    this.#more.hidden = page.cursor === null;
    this.markOpen(this.#openId);
  }

  #item(session) {
    const name = element("strong");
    const facts = element("small");
    const open = element("button", { type: "button", className: "open" }, name, facts);
    open.dataset.verb = "open";
    const buttons = ACTIONS.map(([verb, title]) => {
      const button = element("button", { type: "button", className: "plain", textContent: title });
      button.dataset.verb = verb;
      return [button, title];
    });
    const made = element("li", {}, open, element("span", { className: "actions" }, ...buttons.map(([button]) => button)));
    made.dataset.id = session.id;
    const item = { session, element: made, name, facts, buttons };
    this.#items.set(session.id, item);
    return item;
  }

  #settle() {
    byId("no-sessions").hidden = this.#items.size > 0;
  }
}
