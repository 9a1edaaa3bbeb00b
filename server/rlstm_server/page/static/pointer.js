/** Mouse and keyboard over the heat map: what is under the pointer is told beside it. */

import { byId, element, oncePerFrame } from "./element.js";
import { factsOf } from "./inspector.js";

const DISTANCE_PIXELS = 14;
const DIRECTIONS = { ArrowLeft: -1, ArrowRight: 1 };

export class Pointer {
  #tip = byId("tip");
  #heat;
  #transcript;
  #place = null;

  /** `transcript()` gives what is shown now. */
  constructor(map, { heat, inspector, transcript }) {
    this.#heat = heat;
    this.#transcript = transcript;
    const tell = oncePerFrame(() => this.#tell());
    map.addEventListener("pointermove", (event) => {
      this.#place = { x: event.clientX, y: event.clientY };
      tell();
    });
    for (const name of ["pointerleave", "scroll", "pointerdown"]) {
      map.addEventListener(name, () => {
        this.#place = null;
        tell();
      }, { passive: true });
    }
    map.addEventListener("click", (event) => {
      const cell = heat.cellAt(event.clientX, event.clientY);
      if (cell !== null && document.getSelection().isCollapsed) inspector.point(cell);
    });
    map.addEventListener("keydown", (event) => {
      const direction = DIRECTIONS[event.key];
      if (direction === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      if (event.shiftKey) inspector.leap(direction);
      else inspector.step(direction);
    });
  }

  #tell() {
    const transcript = this.#transcript();
    const cell = transcript && this.#place ? this.#heat.cellAt(this.#place.x, this.#place.y) : null;
    this.#tip.hidden = cell === null;
    if (cell === null) return;
    this.#tip.replaceChildren(...factsOf(transcript, cell).flatMap(([term, value]) => [
      element("span", { textContent: term }),
      element("b", { textContent: value }),
    ]));
    const { x, y } = this.#place;
    const { offsetWidth: width, offsetHeight: height } = this.#tip;
    const left = Math.min(x + DISTANCE_PIXELS, innerWidth - width - DISTANCE_PIXELS);
    const top = y + DISTANCE_PIXELS + height > innerHeight ? y - DISTANCE_PIXELS - height : y + DISTANCE_PIXELS;
    this.#tip.style.translate = `${Math.max(0, left)}px ${Math.max(0, top)}px`;
  }
}
