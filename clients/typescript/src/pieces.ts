/**
 * Long text becomes appends of at most 4,096 bytes, and their answers one answer. No input, no output.
 *
 * A piece never ends inside a character. Each has its own idempotency key, so a repetition after a lost answer
 * repeats one piece and no more.
 */

import type { Call } from "./call.js";
import { checkText, encode } from "./call.js";
import { type AppendProgress, RequestError, ScoresNotStoredError, UnreadableAnswerError } from "./errors.js";
import type { AppendAnswer, Totals } from "./schema.js";
import { sha256 } from "./sha256.js";
import { call, checkedKey, type Options } from "./wire.js";

export const PIECE_BYTES = 4096;
/** How many of a session's keys a server knows again: what has more pieces cannot be repeated as a whole. */
const REMEMBERED_KEYS = 1024;
const APPEND = "POST /sessions/{session_id}/append";
const COLUMNS = [
  "ids",
  "logprobs",
  "static_logprobs",
  "weights_logprobs",
  "memory_logprobs",
  "space_logprobs",
  "static_space_logprobs",
  "ranks",
  "entropies",
  "starts",
  "ends",
] as const;

/** Of `append`. */
export type AppendOptions = Options<typeof APPEND, "session_id" | "text" | "tokens">;

/** Cut a text into pieces of at most `pieceBytes` (4 or more) UTF-8 bytes; "" is one empty piece. */
export function cut(text: string, pieceBytes: number = PIECE_BYTES): string[] {
  checkText(text);
  const data = new TextEncoder().encode(text);
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // which keeps one that a piece begins with
  const pieces: string[] = [];
  let start = 0;
  while (data.length - start > pieceBytes) {
    let end = start + pieceBytes;
    while (((data[end] ?? 0) & 0xc0) === 0x80) {
      end -= 1; // a continuation byte: the cut would fall inside a character
    }
    pieces.push(decoder.decode(data.subarray(start, end)));
    start = end;
  }
  return [...pieces, decoder.decode(data.subarray(start))];
}

function cutTokens(tokens: readonly number[]): (readonly number[])[] {
  const count = Math.max(1, Math.ceil(tokens.length / PIECE_BYTES));
  return Array.from({ length: count }, (_, piece) => tokens.slice(piece * PIECE_BYTES, (piece + 1) * PIECE_BYTES));
}

/**
 * Gathers a stream of texts into pieces.
 *
 * Text is held until there are `gatherBytes` of it; 1 sends everything at once. With `holdLast` the newest piece
 * is held until the next exists, so that the last one can be marked as final.
 */
export class PieceBuffer {
  readonly #gatherBytes: number;
  readonly #holdLast: boolean;
  readonly #pieceBytes: number;
  #text = "";
  #pieces: string[] = [];
  #before = 0;
  #plan: AppendPlan | undefined;

  constructor(gatherBytes: number, holdLast: boolean, pieceBytes: number = PIECE_BYTES) {
    this.#gatherBytes = gatherBytes;
    this.#holdLast = holdLast;
    this.#pieceBytes = pieceBytes;
  }

  /** Take a text and return the pieces that are to be sent now. */
  feed(text: string): string[] {
    this.#text += text;
    // The first half of a surrogate pair waits for the second, which may come with the next text.
    const whole = this.#text.replace(/[\ud800-\udbff]$/, "");
    if (whole !== "" && bytes(whole) >= this.#gatherBytes) {
      this.#pieces.push(...cut(whole, this.#pieceBytes));
      this.#text = this.#text.slice(whole.length);
    }
    return this.#pieces.splice(0, Math.max(0, this.#pieces.length - (this.#holdLast ? 1 : 0)));
  }

  /** The pieces that are left. */
  finish(): string[] {
    const pieces = this.#text === "" ? this.#pieces : [...this.#pieces, ...cut(this.#text, this.#pieceBytes)];
    [this.#text, this.#pieces] = ["", []];
    return pieces;
  }

  /** The plan of a piece, to be carried out before the next one's. */
  plan(sessionId: string, piece: string, options: AppendOptions): AppendPlan {
    const plan = new AppendPlan(sessionId, piece, options);
    [this.#before, this.#plan] = [this.progress().length, plan];
    return plan;
  }

  /** How much of the whole stream is in the session, and what is on its way. */
  progress(): AppendProgress {
    const last = this.#plan?.progress() ?? { length: 0, piece: null, key: null, following: [] };
    return { ...last, answer: null, length: this.#before + last.length };
  }
}

function bytes(text: string): number {
  return new TextEncoder().encode(text).length;
}

/**
 * The calls that append one text, or ids, and the sum of their answers.
 *
 * Take `next`, send it and `add` its answer before taking the next: with `if_match` every piece must find the
 * session as the piece before left it. A key given by the caller names the whole text: the whole append may be
 * repeated with it. It is the key of a text of one piece. The keys of several are derived from it, all of the text
 * and its options: one that another text or another key could have would let a server take the one append for a
 * repeat of the other, and lose it. The Python client derives the same.
 */
export class AppendPlan {
  readonly #pieces: readonly (string | readonly number[])[];
  readonly #answers: AppendAnswer[] = [];
  readonly #sessionId: string;
  readonly #text: string | readonly number[];
  readonly #options: AppendOptions;
  #whole: string | undefined;
  #onItsWay: Call<AppendAnswer> | undefined;

  constructor(sessionId: string, text: string | readonly number[], options: AppendOptions) {
    this.#pieces = typeof text === "string" ? cut(text) : cutTokens(text);
    this.#sessionId = sessionId;
    this.#text = text;
    this.#options = options;
    if (options.idempotency_key !== undefined) {
      checkedKey(options.idempotency_key);
      if (this.#pieces.length > REMEMBERED_KEYS) {
        throw new RequestError(
          `one key cannot name a text of ${this.#pieces.length} pieces, since a server knows only` +
            ` ${REMEMBERED_KEYS} keys again: append it in parts, each with a key of its own`,
        );
      }
    }
  }

  /** The call of the next piece; undefined when all are answered. */
  next(): Call<AppendAnswer> | undefined {
    const index = this.#answers.length;
    const piece = this.#pieces[index];
    if (piece === undefined) {
      return undefined;
    }
    this.#onItsWay = call(APPEND, {
      ...this.#options,
      session_id: this.#sessionId,
      ...(typeof piece === "string" ? { text: piece } : { tokens: piece }),
      ...(index < this.#pieces.length - 1 ? { final: undefined, note: undefined } : {}),
      if_match: this.#version(),
      idempotency_key: this.#key(index),
    });
    return this.#onItsWay;
  }

  /** Take the answer of the call that came last. */
  add(answer: AppendAnswer): void {
    this.#answers.push(marked(answer, this.#options.scores));
    this.#onItsWay = undefined;
  }

  /** How far the text has come. */
  progress(): AppendProgress {
    const done = this.#answers.length;
    return {
      answer: done > 0 ? combine(this.#answers) : null,
      length: this.#pieces.slice(0, done).reduce((sum, piece) => sum + piece.length, 0),
      piece: (this.#onItsWay && this.#pieces[done]) ?? null,
      key: this.#onItsWay?.headers["idempotency-key"] ?? null,
      following: [],
    };
  }

  /** The answers as one; throws where of a part, which was appended before, the scores are not known. */
  get result(): AppendAnswer {
    return withScores(combine(this.#answers));
  }

  #version(): number | undefined {
    const ifMatch = this.#options.if_match;
    return ifMatch === undefined ? undefined : (this.#answers.at(-1)?.version ?? ifMatch);
  }

  #key(index: number): string | undefined {
    const key = this.#options.idempotency_key;
    if (key === undefined || this.#pieces.length === 1) {
      return key;
    }
    this.#whole ??= this.#digestOfAll();
    return digest([key, index, this.#pieces.length, this.#whole]);
  }

  /** Names all that is appended. `if_match` is no part of it: a repeat is one at any version. */
  #digestOfAll(): string {
    const { idempotency_key, if_match, signal, ...options } = this.#options;
    const text = this.#text;
    const all = { ...options, ...(typeof text === "string" ? { text } : { tokens: text }) };
    const given = Object.entries(all).filter(([, value]) => value !== undefined && value !== null);
    return digest(Object.fromEntries(given.sort(([one], [other]) => (one < other ? -1 : 1))));
  }
}

/** The SHA-256 of a value's one JSON form, which is the same in every client. */
function digest(value: object): string {
  return sha256(new TextEncoder().encode(encode(value)));
}

/** Have an error, of whatever kind, say in `progress` how far an append had come; gives the error. */
export function tell(error: unknown, progress: AppendProgress): unknown {
  return error instanceof Error && Object.isExtensible(error) ? Object.assign(error, { progress }) : error;
}

/** The answer, marked if it came without the scores that were asked for: only a repeat may. */
export function marked(answer: AppendAnswer, scores: AppendOptions["scores"]): AppendAnswer {
  const tokens = answer.totals?.tokens;
  const columns = checkColumns(answer);
  const complete = scores === "none" || tokens === 0 || (scores === "totals" ? tokens !== undefined : columns > 0);
  if (!complete && !answer.replayed) {
    throw new UnreadableAnswerError("the answer lacks the scores that were asked for", { applied: "unknown" });
  }
  return (answer.scores_stored ?? true) === complete ? answer : { ...answer, scores_stored: complete };
}

/** An answer that has its scores; of one that has none the error says what is known. */
export function withScores<T extends object>(answer: T): T {
  const { scores_stored, version, position } = answer as Partial<AppendAnswer>;
  if (scores_stored === false) {
    const facts = { version, position };
    throw new ScoresNotStoredError("applied; its scores are no longer stored", { applied: "yes", facts });
  }
  return answer;
}

/** How many columns there are; throws where they are not as long as the tokens that they stand for. */
function checkColumns(answer: AppendAnswer): number {
  const lengths = COLUMNS.map((name) => answer[name]?.length ?? 0).filter((length) => length > 0);
  const tokens = answer.totals?.tokens ?? lengths[0];
  if (lengths.some((length) => length !== tokens)) {
    throw new UnreadableAnswerError(`the columns of ${tokens} tokens have other lengths`, { applied: "unknown" });
  }
  return lengths.length;
}

/**
 * One answer for the pieces of a text: columns joined, totals summed, the rest as at the end.
 *
 * Where the scores of a piece are no longer stored those of the text are not known.
 */
export function combine(answers: readonly AppendAnswer[]): AppendAnswer {
  const last = answers.at(-1);
  if (last === undefined) {
    throw new TypeError("there are no answers to combine");
  }
  if (answers.length === 1) {
    return last;
  }
  const stored = answers.every((answer) => answer.scores_stored !== false);
  const columns = COLUMNS.filter((name) => last[name] != null).map((name) => [
    name,
    stored ? answers.flatMap((answer) => answer[name] ?? []) : undefined,
  ]);
  const guards: Record<string, number> = {};
  for (const [name, count] of answers.flatMap((answer) => Object.entries(answer.guards))) {
    guards[name] = (guards[name] ?? 0) + count;
  }
  const totals = answers.map((answer) => answer.totals);
  const whole = {
    ...last,
    ...(Object.fromEntries(columns) as Partial<AppendAnswer>),
    replayed: answers.some((answer) => answer.replayed),
    updates: sum(answers.map((answer) => answer.updates)),
    guards,
    ...(all(totals) && stored ? { totals: summed(totals) } : {}),
    ...(stored ? {} : { totals: undefined, scores_stored: false }),
  };
  checkColumns(whole);
  return whole;
}

function summed(parts: readonly Totals[]): Totals {
  return {
    logprob: sum(parts.map((part) => part.logprob)),
    static_logprob: sumOfAll(parts.map((part) => part.static_logprob)),
    ...optional("weights_logprob", parts),
    ...optional("memory_logprob", parts),
    tokens: sum(parts.map((part) => part.tokens)),
    bytes: sum(parts.map((part) => part.bytes)),
    words: sum(parts.map((part) => part.words)),
    unknown: sum(parts.map((part) => part.unknown)),
    perplexity: perplexity(parts),
    bits_per_byte: perByte(parts, "bits_per_byte"),
    static_bits_per_byte: perByte(parts, "static_bits_per_byte"),
    gain: sumOfAll(parts.map((part) => part.gain)),
  };
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function sumOfAll(values: readonly (number | null | undefined)[]): number | null {
  return all(values) ? sum(values) : null;
}

/** The sum of a member that all parts have or none. */
function optional(name: "weights_logprob" | "memory_logprob", parts: readonly Totals[]): Partial<Totals> {
  const total = sumOfAll(parts.map((part) => part[name]));
  return total === null ? {} : { [name]: total };
}

function all<T>(values: readonly (T | null | undefined)[]): values is readonly T[] {
  return values.every((value) => value !== null && value !== undefined);
}

function perByte(parts: readonly Totals[], name: "bits_per_byte" | "static_bits_per_byte"): number | null {
  const bytes = sum(parts.map((part) => part.bytes));
  const weighted = sumOfAll(parts.map((part) => (part[name] === null ? null : part[name] * part.bytes)));
  return bytes > 0 && weighted !== null ? weighted / bytes : null;
}

function perplexity(parts: readonly Totals[]): number | null {
  const tokens = sum(parts.map((part) => part.tokens));
  const logs = sumOfAll(parts.map((part) => (part.perplexity ? part.tokens * Math.log(part.perplexity) : null)));
  return tokens > 0 && logs !== null ? Math.exp(logs / tokens) : null;
}
