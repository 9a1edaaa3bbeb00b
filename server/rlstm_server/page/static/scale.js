/**
 * The scale of colours: seven levels of surprisal, and seven of what learning changed.
 *
 * The bounds of surprisal are parts of what a blind guess costs, log2 of the vocabulary: 8 bits a byte. Colours
 * grow darker from level to level (in the dark: lighter), so they are told apart without their hue; the upper
 * levels are underlined as well.
 */

import { element } from "./element.js";
import { fixed } from "./words.js";

const PARTS = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1];
const CHANGES = [0.1, 0.5, 2];
export const SURPRISE = 4;

export class Scale {
  constructor(uniformBits) {
    this.bounds = PARTS.map((part) => part * uniformBits);
  }

  /** The level of a number of bits: 0 to 6. */
  level(bits) {
    let level = 0;
    while (level < this.bounds.length && bits >= this.bounds[level]) level += 1;
    return level;
  }

  /** The level of a number of saved bits: -3 to 3. */
  change(bits) {
    const size = Math.abs(bits);
    return Math.sign(bits) * CHANGES.filter((bound) => size >= bound).length;
  }

  /** Draw what the colours of a view mean. */
  drawLegend(legend, view) {
    const steps = view === "saved" ? this.#changes() : this.#levels();
    legend.replaceChildren(...steps.map(([name, label]) => element("span", { className: name, textContent: label })));
    legend.append(element("span", { className: "unit", textContent: view === "saved" ? "bits saved" : "bits" }));
    const bounds = this.bounds.map((bound) => fixed(bound, bound % 1 ? 1 : 0));
    legend.setAttribute("aria-label", view === "saved"
      ? "Blue: learning saved bits. Orange, with a wavy underline: learning cost bits."
      : `The darker (at night: the lighter), the more surprising: steps at ${bounds.join(", ")} bits. From ${bounds[3]} bits on underlined.`);
  }

  #levels() {
    const bounds = this.bounds.map((bound) => fixed(bound, bound % 1 ? 1 : 0));
    return ["0", ...bounds].map((bound, level) => [`level${level}`, level === PARTS.length ? `${bound} +` : bound]);
  }

  #changes() {
    return [-3, -2, -1, 0, 1, 2, 3].map((change) => {
      const bound = CHANGES[Math.abs(change) - 1];
      return [`change${change}`, change === 0 ? "±" : change < 0 ? `−${bound}` : `+${bound}`];
    });
  }
}

/** The class that colours a cell in a view; null leaves it as it is. */
export function colour(scale, view, adapted, static_) {
  if (view === "saved") {
    const change = static_ === null ? 0 : scale.change(static_ - adapted);
    return change === 0 ? null : `change${change}`;
  }
  const bits = view === "fixed" ? static_ : adapted;
  const level = bits === null ? 0 : scale.level(bits);
  return level === 0 ? null : `level${level}`;
}
