/**
 * The heat map: the text in rows of a thousand characters or so.
 *
 * A row is plain text until it comes near the window, and is coloured there: a span for each run of one colour.
 * So 100 kB are drawn in a fraction of a second, and stay smooth, however long the text grows.
 */

import { element } from "./element.js";
import { colour } from "./scale.js";

const SIDES = { adapted: ["adapted"], fixed: ["fixed"], saved: ["saved"], both: ["adapted", "fixed"] };
const TITLES = { adapted: "Adapted", fixed: "Static" };
const NEAR = "80% 0px";
const NEW_LINE_CLASS = " newline";
const AT_END_PIXELS = 8;
/** How much higher a line is than its letters. */
const LINE = 1.6;

export class HeatMap {
  #map;
  #rows;
  #transcript = null;
  #view = "adapted";
  #scale = null;
  #drawn = [];
  #painted = new Set();
  #watch;
  /** Whether the end is kept in view as the text grows. */
  #isFollowing = true;
  #lowest = 0;
  /** The cell pointed at, the sides that show it, and a box on each; null for none. */
  #cursor = null;

  /** `map` scrolls and holds `rows`. */
  constructor(map, rows) {
    this.#map = map;
    this.#rows = rows;
    this.#watch = new IntersectionObserver((seen) => this.#paintNear(seen), { root: map, rootMargin: NEAR });
    const resized = new ResizeObserver(() => {
      this.#placeCursor();
      this.#keepEnd();
    });
    resized.observe(map);
    resized.observe(rows);
    map.addEventListener("scroll", () => this.#heedScroll(), { passive: true });
  }

  /** Show a transcript; null shows nothing. One that was shown in another view stays where it is. */
  show(transcript, view, scale) {
    const isSame = transcript === this.#transcript;
    const top = isSame ? this.#topmost() : 0;
    this.#isFollowing = transcript?.length === 0 || (isSame && this.#isFollowing);
    this.#transcript = transcript;
    this.#view = view;
    this.#scale = scale;
    this.#watch.disconnect();
    this.#painted.clear();
    this.#drawn = [];
    this.#cursor = null;
    this.#rows.replaceChildren();
    this.#rows.className = view;
    if (transcript === null) return;
    if (view === "both") this.#rows.append(this.#heads());
    this.grow();
    if (top > 0 && !this.#isFollowing) this.#drawn[top].scrollIntoView({ block: "start" });
  }

  /** Draw what the transcript has more than before. Whoever was at the end stays there. */
  grow() {
    const { blocks } = this.#transcript;
    if (this.#drawn.length > 0) this.#extend(this.#drawn.at(-1), this.#drawn.length - 1);
    const added = [];
    for (let index = this.#drawn.length; index < blocks.length; index += 1) {
      const row = this.#row(index);
      this.#drawn.push(row);
      added.push(row);
    }
    // At the end what is new is seen at once: it need not be laid out without its colours first.
    if (this.#isFollowing) for (const row of added.slice(-2)) if (row.dataset.block) this.#paint(row);
    this.#rows.append(...added);
  }

  /** The cell at a point of the window; null where there is none. */
  cellAt(x, y) {
    const caret = caretAt(x, y);
    const side = caret && caret.node.parentElement?.closest(".side");
    if (!side || !this.#rows.contains(side)) return null;
    return this.#cellOf(Number(side.parentElement.dataset.block), offsetIn(side, caret));
  }

  /** Put the cursor on a cell, null on none; `isFollowed` brings it into view. */
  point(cell, { isFollowed = false } = {}) {
    for (const box of this.#cursor?.boxes ?? []) box.remove();
    this.#cursor = null;
    if (cell === null) return;
    const sides = [...this.#drawn[this.#transcript.blockIndexOf(cell)].children];
    const boxes = sides.map(() => element("div", { className: "cursor" }));
    this.#cursor = { cell, sides, boxes };
    this.#rows.append(...boxes);
    this.#placeCursor();
    if (isFollowed) this.#follow();
  }

  #keepEnd() {
    const { scrollHeight, clientHeight } = this.#map;
    this.#lowest = scrollHeight - clientHeight;
    if (this.#isFollowing) this.#map.scrollTop = this.#lowest;
  }

  /** Whoever scrolls away from the end is left alone; a map that only changed its size is not scrolled. */
  #heedScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.#map;
    if (scrollHeight - clientHeight === this.#lowest) this.#isFollowing = scrollTop >= this.#lowest - AT_END_PIXELS;
    else this.#keepEnd();
  }

  /** The first row that is seen. */
  #topmost() {
    const { top } = this.#map.getBoundingClientRect();
    return this.#drawn.findIndex((row) => row.getBoundingClientRect().bottom > top);
  }

  #heads() {
    return element("div", { className: "heads" }, ...SIDES.both.map((side) => element("span", { textContent: TITLES[side] })));
  }

  #row(index) {
    const block = this.#transcript.blocks[index];
    if (block.text === undefined) return element("p", { className: "mark", textContent: block.label });
    const row = element("div", { className: "row" });
    Object.assign(row.dataset, { block: index, length: block.text.length });
    SIDES[this.#view].forEach((_, number) => {
      // The second side is the same text again.
      row.append(element("p", { className: "side", textContent: block.text, ariaHidden: number > 0 ? "true" : null }));
    });
    this.#watch.observe(row);
    return row;
  }

  /** Draw what a row's block has more than the row. */
  #extend(row, index) {
    const block = this.#transcript.blocks[index];
    if (block.text === undefined) return;
    const from = Number(row.dataset.length);
    if (from === block.text.length) return;
    [...row.children].forEach((side, number) => {
      if (this.#painted.has(row)) side.append(...this.#runs(index, SIDES[this.#view][number], from));
      else side.append(block.text.slice(from));
    });
    row.dataset.length = block.text.length;
  }

  #paintNear(seen) {
    // Changing rows that are selected would lose the selection.
    const isSelecting = !(document.getSelection()?.isCollapsed ?? true);
    for (const { target, isIntersecting } of seen) {
      if (isIntersecting && !this.#painted.has(target)) this.#paint(target);
      else if (!isIntersecting && this.#painted.has(target) && !isSelecting) this.#clear(target);
    }
  }

  #clear(row) {
    this.#painted.delete(row);
    const { text } = this.#transcript.blocks[row.dataset.block];
    for (const side of row.children) side.textContent = text;
    row.dataset.length = text.length;
  }

  #paint(row) {
    this.#painted.add(row);
    const index = Number(row.dataset.block);
    SIDES[this.#view].forEach((view, number) => row.children[number].replaceChildren(...this.#runs(index, view)));
    row.dataset.length = this.#transcript.blocks[index].text.length;
  }

  /** The text of a block from an offset on, as runs of one colour; a new line is its own, so that it is seen. */
  #runs(index, view, from = 0) {
    const { blocks, adapted, fixed, starts, ends } = this.#transcript;
    const { text } = blocks[index];
    const [first, last] = this.#transcript.cellsOf(index);
    const runs = [];
    let at = from;
    const put = (end, name) => {
      const last = runs.at(-1);
      if (last?.name === name && !name?.endsWith(NEW_LINE_CLASS)) last.end = end;
      else if (end > at) runs.push({ name, start: at, end });
      at = Math.max(at, end);
    };
    for (let cell = from === 0 ? first : this.#cellFrom(index, from); cell < last; cell += 1) {
      put(starts[cell], null);
      const name = colour(this.#scale, view, adapted[cell], fixed[cell]);
      put(ends[cell], name && text[starts[cell]] === "\n" ? name + NEW_LINE_CLASS : name);
    }
    put(text.length, null);
    return runs.map(({ name, start, end }) => {
      const piece = text.slice(start, end);
      return name === null ? piece : element("span", { className: name, textContent: piece });
    });
  }

  /** The cell of a block at an offset in its text; null where there is none. */
  #cellOf(index, offset) {
    const cell = this.#cellFrom(index, offset + 1) - 1;
    const isIn = cell >= this.#transcript.blocks[index].first && offset < this.#transcript.ends[cell];
    return isIn ? cell : null;
  }

  /** The first cell of a block that begins at an offset or after it. */
  #cellFrom(index, offset) {
    let [low, high] = this.#transcript.cellsOf(index);
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#transcript.starts[middle] < offset) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  #placeCursor() {
    if (this.#cursor === null) return;
    const { cell, sides, boxes } = this.#cursor;
    const { starts, ends } = this.#transcript;
    const origin = this.#rows.getBoundingClientRect();
    boxes.forEach((box, number) => {
      const place = rangeIn(sides[number], starts[cell], ends[cell]).getClientRects()[0];
      if (place === undefined) return;
      box.style.translate = `${place.left - origin.left}px ${place.top - origin.top}px`;
      box.style.width = `${Math.max(place.width, 4)}px`;
      box.style.height = `${place.height}px`;
    });
  }

  #follow() {
    const box = this.#cursor.boxes[0].getBoundingClientRect();
    const map = this.#map.getBoundingClientRect();
    if (box.top >= map.top + 24 && box.bottom <= map.bottom - 24) return;
    this.#map.scrollTop += box.top - map.top - map.height / 2;
    this.#placeCursor();
  }
}

/** The character under a point: carets stand between characters, so that before may be meant. */
function caretAt(x, y) {
  const caret = document.caretPositionFromPoint?.(x, y);
  const found = caret ? { node: caret.offsetNode, offset: caret.offset } : rangeAt(x, y);
  if (found?.node?.nodeType !== Node.TEXT_NODE) return null;
  const range = document.createRange();
  for (const offset of [found.offset, found.offset - 1]) {
    if (offset < 0 || offset >= found.node.length) continue;
    range.setStart(found.node, offset);
    range.setEnd(found.node, offset + 1);
    const isUnder = [...range.getClientRects()].some((box) => box.left <= x && x <= box.right && Math.abs(2 * y - box.top - box.bottom) <= LINE * box.height);
    if (isUnder) return { node: found.node, offset };
  }
  return null;
}

function rangeAt(x, y) {
  const range = document.caretRangeFromPoint?.(x, y);
  return range ? { node: range.startContainer, offset: range.startOffset } : null;
}

/** Where a caret is in the text of a side. */
function offsetIn(side, { node, offset }) {
  let before = 0;
  const child = node.parentElement === side ? node : node.parentElement;
  for (let other = child.previousSibling; other !== null; other = other.previousSibling) before += other.textContent.length;
  return before + offset;
}

/** The range between two offsets in the text of a side. */
function rangeIn(side, start, end) {
  const range = document.createRange();
  let before = 0;
  for (const child of side.childNodes) {
    const text = child.firstChild ?? child;
    if (start >= before && start < before + text.length) range.setStart(text, start - before);
    if (end > before && end <= before + text.length) {
      range.setEnd(text, end - before);
      break;
    }
    before += text.length;
  }
  return range;
}
