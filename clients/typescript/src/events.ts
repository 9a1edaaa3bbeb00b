/**
 * Server-sent events, decoded without input or output: bytes in, events out.
 *
 * The decoder follows the WHATWG standard: lines end in CR, LF or CRLF, a line that starts with a colon is a
 * comment (the server's pings), a blank line ends an event, an event without data is none, and what is
 * unfinished at the end of the stream is dropped. A chunk may end anywhere, also inside a character.
 */

import type { Call } from "./call.js";
import { after, json } from "./call.js";
import { StreamInterruptedError, UnreadableAnswerError } from "./errors.js";
import { fromProblem, isObject } from "./problems.js";
import type { EndEvent, TokenEvent } from "./schema.js";

const FAULT_STATUS = 500;

/** One event of a generation; what the server reports as an error is thrown. */
export type GenerationEvent =
  | (TokenEvent & { readonly event: "token" })
  | (EndEvent & { readonly event: "end" });

/** One event as it came over the wire. */
export interface ServerSentEvent {
  readonly event: string;
  readonly data: string;
  readonly id: string;
}

/** Turns chunks of bytes into events; it remembers what is unfinished. */
export class EventDecoder {
  readonly #characters = new TextDecoder();
  #line = "";
  #afterCR = false;
  #event = "";
  #data: string[] = [];
  #id = "";

  /** The events that this chunk completes. */
  feed(chunk: Uint8Array): ServerSentEvent[] {
    const lines = this.#lines(this.#characters.decode(chunk, { stream: true }));
    return lines.map((line) => this.#take(line)).filter((event) => event !== null);
  }

  #lines(text: string): string[] {
    // A CR ends its line at once, so that no event waits for a byte that may never come; an LF right after it,
    // perhaps in the next chunk, belongs to it and is dropped.
    let rest = text;
    if (this.#afterCR && text !== "") {
      rest = text.startsWith("\n") ? text.slice(1) : text;
      this.#afterCR = false;
    }
    this.#afterCR = rest.endsWith("\r") || (this.#afterCR && rest === "");
    const lines = rest.split(/\r\n|\r|\n/u);
    lines[0] = this.#line + (lines[0] ?? "");
    this.#line = lines.pop() ?? "";
    return lines;
  }

  #take(line: string): ServerSentEvent | null {
    if (line === "") {
      return this.#dispatch();
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /u, "");
    if (name === "event") {
      this.#event = value;
    } else if (name === "data") {
      this.#data.push(value);
    } else if (name === "id" && !value.includes("\0")) {
      this.#id = value;
    }
    return null;
  }

  #dispatch(): ServerSentEvent | null {
    const [event, data] = [this.#event, this.#data];
    [this.#event, this.#data] = ["", []];
    return data.length > 0 ? { event: event || "message", data: data.join("\n"), id: this.#id } : null;
  }
}

/**
 * Turns the chunks of a `generate` stream into typed events, and its failures into errors.
 *
 * A stream may come over several connections, each of them opened with `call`.
 */
export class EventReader {
  readonly #call: Call<unknown>;
  #decoder = new EventDecoder();
  #openChoices: number;
  #begun = false;
  #lastId = "";

  constructor(call: Call<unknown>) {
    this.#call = call;
    this.#openChoices = call.choices;
  }

  /** The call whose answer is the rest of the stream. */
  get call(): Call<unknown> {
    return this.#lastId === "" ? this.#call : after(this.#call, this.#lastId);
  }

  /** Whether every choice has had its end. */
  get complete(): boolean {
    return this.#openChoices <= 0;
  }

  /** Whether another connection may bring the rest, and none of it twice. */
  get goesOn(): boolean {
    return !this.#begun || (this.#call.resumable && this.#lastId !== "");
  }

  /** Call this when a new connection was opened: what the last one left unfinished is dropped. */
  reconnected(): void {
    this.#decoder = new EventDecoder();
  }

  /** The events of this chunk; throws where the server reports an error, after what came before it. */
  *feed(chunk: Uint8Array): Generator<GenerationEvent, void, void> {
    for (const raw of this.#decoder.feed(chunk)) {
      const event = this.#typed(raw);
      if (event !== null) {
        this.#openChoices -= event.event === "end" ? 1 : 0;
        this.#begun = true;
        this.#lastId = raw.id || this.#lastId;
        yield event;
      }
    }
  }

  /** Call this when the connection has ended; throws when a choice had no end event. */
  finish(): void {
    if (!this.complete) {
      throw new StreamInterruptedError("the stream broke off before its end", {
        applied: "unknown",
        requestId: this.#call.requestId,
      });
    }
  }

  #typed(raw: ServerSentEvent): GenerationEvent | null {
    switch (raw.event) {
      case "token":
      case "end":
        return { ...this.#object(raw.data), event: raw.event } as unknown as GenerationEvent;
      case "error": {
        const problem: Record<string, unknown> = { request_id: this.#call.requestId, ...this.#object(raw.data) };
        const status = problem["status"];
        throw fromProblem(typeof status === "number" ? status : FAULT_STATUS, problem);
      }
      default:
        return null; // an event of a newer server
    }
  }

  #object(data: string): Record<string, unknown> {
    const value = json(data);
    if (!isObject(value)) {
      throw new UnreadableAnswerError("an event's data is not a JSON object", {
        applied: "unknown",
        requestId: this.#call.requestId,
      });
    }
    return value;
  }
}
