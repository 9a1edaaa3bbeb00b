/** One token at a time: a slider that every keyboard and screen reader knows, and what the token cost. */

import { byId, element } from "./element.js";
import { SURPRISE } from "./scale.js";
import { fixed, seen, spoken, whole } from "./words.js";

export class Inspector {
  #transcript = null;
  #scale = null;
  #slider = byId("token");
  #pointed;

  /** `pointed(cell)` hears of the token that was chosen. */
  constructor(pointed) {
    this.#pointed = pointed;
    this.#slider.addEventListener("input", () => this.#choose(this.#slider.valueAsNumber));
    byId("surprise-before").addEventListener("click", () => this.leap(-1));
    byId("surprise-after").addEventListener("click", () => this.leap(1));
  }

  /** Inspect a transcript; null inspects nothing. */
  show(transcript, scale) {
    this.#transcript = transcript;
    this.#scale = scale;
    this.#slider.value = 0;
    this.grow();
  }

  /** The transcript has more tokens now. */
  grow() {
    const length = this.#transcript?.length ?? 0;
    byId("inspector").hidden = length === 0;
    this.#slider.max = Math.max(0, length - 1);
    if (length > 0) this.#tell(this.#slider.valueAsNumber);
  }

  /** Choose a token. */
  point(cell) {
    this.#slider.value = cell;
    this.#choose(cell);
  }

  /** Choose the next token in a direction. */
  step(direction) {
    const cell = this.#slider.valueAsNumber + direction;
    if (this.#transcript !== null && cell >= 0 && cell < this.#transcript.length) this.point(cell);
  }

  /** Choose the next surprising token in a direction. */
  leap(direction) {
    const { adapted } = this.#transcript;
    let cell = this.#slider.valueAsNumber + direction;
    while (cell >= 0 && cell < adapted.length && this.#scale.level(adapted[cell]) < SURPRISE) cell += direction;
    if (cell >= 0 && cell < adapted.length) this.point(cell);
  }

  #choose(cell) {
    this.#tell(cell);
    this.#pointed(cell);
  }

  #tell(cell) {
    const facts = factsOf(this.#transcript, cell);
    byId("facts").replaceChildren(
      ...facts.map(([term, value]) => element("div", {}, element("dt", { textContent: term }), element("dd", { textContent: value }))),
    );
    const told = facts.slice(1).map(([term, value]) => `${term} ${value}`).join(", ");
    this.#slider.setAttribute("aria-valuetext", `${spoken(this.#transcript.token(cell))}: ${told}`);
  }
}

/** What there is to say of a token, in terms and values. */
export function factsOf(transcript, cell) {
  const { adapted, fixed: static_, ranks, tokens, places } = transcript;
  const bits = (number) => `${fixed(number)} bits`;
  return [
    ["Token", seen(transcript.token(cell))],
    ["Adapted", bits(adapted[cell])],
    ["Static", static_[cell] === null ? "–" : bits(static_[cell])],
    ["Saved", static_[cell] === null ? "–" : bits(static_[cell] - adapted[cell])],
    [tokens[cell] > 1 ? `Rank, worst of ${tokens[cell]}` : "Rank", whole(ranks[cell])],
    ["Byte", whole(places[cell])],
  ];
}
