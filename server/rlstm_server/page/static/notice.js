/** A problem as it is shown: in the server's words, with what became of the change, and what can be done. */

import { byId } from "./element.js";

const APPLIED = {
  no: "Nothing was changed.",
  yes: "The change was made.",
  unknown: "Whether the change was made is not known; trying again makes it once.",
};

export class Notice {
  #again = null;

  constructor() {
    byId("problem-close").addEventListener("click", () => this.hide());
    byId("problem-again").addEventListener("click", () => {
      const again = this.#again;
      this.hide();
      again();
    });
  }

  /** Show a problem; `again` is offered where it can be tried again, `more` is said besides. */
  show(problem, { again = null, more = "" } = {}) {
    this.#again = again;
    byId("problem-title").textContent = problem.title;
    byId("problem-detail").textContent = sentence(problem.detail);
    const id = problem.requestId ? `Request ${problem.requestId}.` : "";
    byId("problem-more").textContent = [problem.applied ? APPLIED[problem.applied] : "", more, id].filter(Boolean).join(" ");
    byId("problem-again").hidden = again === null;
    byId("problem").hidden = false;
  }

  hide() {
    this.#again = null;
    byId("problem").hidden = true;
  }
}

function sentence(detail) {
  if (!detail) return "";
  const text = detail[0].toUpperCase() + detail.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
