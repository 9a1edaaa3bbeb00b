/**
 * What was read of a session since this page looks: its text in blocks, and what each of its cells cost.
 *
 * A cell is a token, or the tokens that share a character: of a byte vocabulary those of one character. Cells have an index over the
 * whole transcript; their columns are arrays of the same length.
 */

import { byteLength } from "./cut.js";
import { whole } from "./words.js";

const BLOCK_LENGTH = 1200;
const LONGEST_BLOCK = 2400;
const CURVE_BYTES = 32;

export class Transcript {
  /** Text, with the cells from `first` on, or a mark: what else happened to the session. */
  blocks = [];
  adapted = [];
  fixed = [];
  ranks = [];
  tokens = [];
  /** Where a cell begins and ends in the text of its block. */
  starts = [];
  ends = [];
  /** Where it ends in the session, in bytes. */
  places = [];
  /** Running means, in bits per byte, by the bytes read: { bytes, adapted, fixed }. */
  curve = [];
  /** The experts' weights by the bytes read: { bytes, weights }. */
  weights = [];
  #held = "";
  #position = 0;
  #sums = { bytes: 0, adapted: 0, fixed: 0, weights: null, memory: null };
  #coversAll;

  /** `coversAll` says that every character belongs to a token; words leave out the white space between them. */
  constructor({ coversAll }) {
    this.#coversAll = coversAll;
  }

  /** The transcript of a session that may have read something before. */
  static of(session, options) {
    const transcript = new Transcript(options);
    const { bytes, adapted_bits: adapted, static_bits: fixed, weights_bits: weights = null, memory_bits: memory = null } = session.totals;
    transcript.#sums = { bytes, adapted, fixed, weights, memory };
    transcript.#position = session.position;
    if (session.position > 0) transcript.mark(`${whole(session.position)} tokens were read before`);
    transcript.weigh(session.weights);
    return transcript;
  }

  /** The running means at the end. */
  get now() {
    const { bytes, ...sums } = this.#sums;
    const means = Object.entries(sums).map(([part, sum]) => [part, sum === null ? null : sum / bytes]);
    return { bytes, ...Object.fromEntries(means) };
  }

  get length() {
    return this.adapted.length;
  }

  /** A copy that goes its own way: what a fork has read. */
  copy() {
    const copied = new Transcript({ coversAll: this.#coversAll });
    Object.assign(copied, structuredClone({ ...this }));
    copied.#held = this.#held;
    copied.#position = this.#position;
    copied.#sums = { ...this.#sums };
    return copied;
  }

  /** Take a text and what the session answered to it. */
  add(text, answer) {
    this.meet(answer.position - answer.totals.tokens);
    this.#position = answer.position;
    const all = this.#held + text;
    if (answer.totals.tokens === 0) this.#held = all;
    else if (answer.ids === undefined) this.#miss(all, answer.totals);
    else this.#read(all, answer);
    this.weigh(answer.weights);
  }

  /** Note what else happened to the session. */
  mark(label) {
    this.blocks.push({ label, first: this.length });
  }

  /** Note that the session is at `position`: what is not known here was read by somebody else. */
  meet(position) {
    if (position > this.#position) {
      this.mark(`${whole(position - this.#position)} tokens were read elsewhere`);
      this.#held = "";
    }
    this.#position = position;
  }

  weigh(weights) {
    this.weights.push({ bytes: this.#sums.bytes, weights });
  }

  /** The text of a cell. */
  token(cell) {
    return this.blockOf(cell).text.slice(this.starts[cell], this.ends[cell]);
  }

  /** The block that a cell is in. */
  blockOf(cell) {
    return this.blocks[this.blockIndexOf(cell)];
  }

  /** The index of that block: the last that begins at or before the cell. */
  blockIndexOf(cell) {
    let low = 0;
    let high = this.blocks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.blocks[middle].first <= cell) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** The cells of a block: from the first to before the second. */
  cellsOf(index) {
    return [this.blocks[index].first, this.blocks[index + 1]?.first ?? this.length];
  }

  /** A repetition was answered with sums only: the text has no colours. */
  #miss(all, { bytes, logprob, static_logprob: fixed, weights_logprob: weights, memory_logprob: memory }) {
    this.mark("read, but its scores were not kept:");
    this.#openBlock().text += all;
    this.#held = "";
    this.#count(bytes, { adapted: -logprob, fixed: fixed === null ? null : -fixed, weights: -weights, memory: -memory });
  }

  #read(all, answer) {
    const { ids, starts, ends, logprobs, static_logprobs: fixed, ranks, weights_logprobs: weights, memory_logprobs: memory } = answer;
    const points = codePoints(all);
    const first = this.#endOf(all, points, answer) - (points.length - 1);
    let shown = 0;
    let token = 0;
    while (token < ids.length) {
      const cell = { adapted: 0, fixed: fixed ? 0 : null, weights: 0, memory: 0, rank: 0, tokens: 0 };
      const start = starts[token];
      let end = ends[token];
      // Tokens that share a character are one cell.
      do {
        cell.adapted -= logprobs[token];
        if (fixed) cell.fixed -= fixed[token];
        if (memory) {
          cell.weights -= weights[token];
          cell.memory -= memory[token];
        }
        cell.rank = Math.max(cell.rank, ranks[token]);
        cell.tokens += 1;
        end = Math.max(end, ends[token]);
        token += 1;
      } while (token < ids.length && starts[token] < end);
      const [from, to] = [points[start - first], points[end - first]];
      if (from === undefined || to === undefined) continue; // of text that this page was not given
      this.#push(all.slice(shown, from), all.slice(from, to), cell);
      shown = to;
    }
    this.#held = all.slice(shown);
  }

  /** The session's length in characters after an answer, held ones included. */
  #endOf(all, points, { ends, pending }) {
    const ready = all.slice(0, points[Math.max(0, points.length - 1 - pending)]);
    const blank = this.#coversAll ? 0 : ready.length - ready.replace(/[^\S\n]+$/u, "").length;
    return ends.at(-1) + blank + pending;
  }

  #push(gap, text, cell) {
    const block = this.#openBlock();
    block.text += gap;
    this.starts.push(block.text.length);
    block.text += text;
    this.ends.push(block.text.length);
    this.adapted.push(cell.adapted);
    this.fixed.push(cell.fixed);
    this.ranks.push(cell.rank);
    this.tokens.push(cell.tokens);
    this.#count(byteLength(gap) + byteLength(text), cell);
    this.places.push(this.#sums.bytes);
  }

  /** The block that text goes on in. One ends with a line, or, where lines are long, with a word. */
  #openBlock() {
    const last = this.blocks.at(-1);
    const isOpen = last?.text !== undefined && !(
      (last.text.length > BLOCK_LENGTH && last.text.endsWith("\n")) ||
      (last.text.length > LONGEST_BLOCK && /\s$/u.test(last.text)) ||
      last.text.length > 2 * LONGEST_BLOCK
    );
    if (!isOpen) this.blocks.push({ text: "", first: this.length });
    return this.blocks.at(-1);
  }

  #count(bytes, cell) {
    const sums = this.#sums;
    sums.bytes += bytes;
    sums.adapted += cell.adapted;
    for (const part of ["fixed", "weights", "memory"]) if (sums[part] !== null) sums[part] += cell[part];
    if (sums.bytes - (this.curve.at(-1)?.bytes ?? -CURVE_BYTES) < CURVE_BYTES) return;
    this.curve.push(this.now);
  }
}

/** Where in a text each of its code points begins, and where it ends. */
function codePoints(text) {
  const points = [];
  for (let index = 0; index < text.length; index += text.codePointAt(index) > 0xffff ? 2 : 1) points.push(index);
  points.push(text.length);
  return points;
}
