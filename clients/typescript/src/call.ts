/** A call as a value: what to send, and how its answer is read. No input, no output. */

import { RequestError, RLSTMError, UnreadableAnswerError } from "./errors.js";
import { fromAnswer, isObject } from "./problems.js";

/** The forms that a body or an answer can have. */
export type Form = "json" | "text" | "octets" | "none";

/** One request and the form of its answer; sending it again sends the same key and the same body. */
export interface Call<T> {
  readonly method: string;
  /** Path and query. */
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | Blob | undefined;
  readonly form: Form;
  /** How many end events a stream of its answer has. */
  readonly choices: number;
  /** Whether it makes a text that is kept as it comes: sent again, it goes on where it stopped. */
  readonly resumable: boolean;
  readonly requestId: string;
  /** Of the answer, for the compiler; never there. */
  readonly answer?: T;
}

/** Whether the server takes a call once however often it is sent. */
export function keyed(call: Call<unknown>): boolean {
  return "idempotency-key" in call.headers;
}

/** Whether the server may be another one afterwards. */
export function changes(call: Call<unknown>): boolean {
  return keyed(call) || call.method === "DELETE";
}

/** The same call, for what comes after an event of its stream. */
export function after<T>(call: Call<T>, eventId: string): Call<T> {
  return { ...call, headers: { ...call.headers, "last-event-id": eventId } };
}

/** 128 random bits in hexadecimal, for an idempotency key or a request id. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Read the answer to a call whole; throw what the server refused with. */
export async function read<T>(call: Call<T>, response: Response): Promise<T> {
  if (response.status >= 400) {
    throw fromAnswer(response.status, response.headers, await response.text(), call.requestId);
  }
  if (!response.ok) {
    throw unreadable(call, response, `unexpected status ${response.status}`);
  }
  return (await value(call, response)) as T;
}

async function value(call: Call<unknown>, response: Response): Promise<unknown> {
  const mediaType = mediaTypeOf(response);
  if (call.form === "octets") {
    if (mediaType !== "application/octet-stream") {
      throw unreadable(call, response, "the answer is not the file it should be");
    }
    return response.blob();
  }
  const text = await response.text();
  if (call.form !== "json") {
    return call.form === "text" ? text : undefined;
  }
  const parsed = mediaType === "application/json" ? json(text) : undefined;
  if (!isObject(parsed)) {
    throw unreadable(call, response, "the answer is not the JSON object it should be");
  }
  return parsed;
}

/** The media type of an answer, without parameters. */
export function mediaTypeOf(response: Response): string {
  return (response.headers.get("content-type") ?? "").split(";")[0]?.trim() ?? "";
}

/** An answer that this client does not understand. */
export function unreadable(call: Call<unknown>, response: Response, detail: string): RLSTMError {
  const { status } = response;
  return new UnreadableAnswerError(detail, { applied: "unknown", status, requestId: call.requestId });
}

/** Parse JSON; undefined where it is none. */
export function json(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Strict JSON; members that are undefined are left out. */
export function encode(body: object): string {
  try {
    return JSON.stringify(body, strictly);
  } catch (error) {
    if (error instanceof RequestError) {
      throw error;
    }
    throw new RequestError(`the request has no JSON form: ${String(error)}`, { cause: error });
  }
}

/** Refuse what `JSON.stringify` would change without a word. */
function strictly(name: string, given: unknown): unknown {
  checkText(name);
  if (typeof given === "string") {
    checkText(given);
  } else if (typeof given === "number" && !Number.isFinite(given)) {
    throw new RequestError("the request has no JSON form: NaN and the infinities are not JSON numbers");
  } else if (typeof given === "function" || typeof given === "symbol") {
    throw new RequestError(`the request has no JSON form: a ${typeof given} is no JSON value`);
  }
  return given;
}

/** Refuse a string that is no text. */
export function checkText(text: string): void {
  const place = text.search(/\p{Surrogate}/u);
  if (place >= 0) {
    throw new RequestError(`the text is no text: a lone surrogate at character ${place}`);
  }
}
