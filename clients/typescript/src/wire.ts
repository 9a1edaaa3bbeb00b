/** Every call of the HTTP interface, built from its fields by the table that the server's document gave. */

import type { Call } from "./call.js";
import { encode, newKey } from "./call.js";
import { RequestError } from "./errors.js";
import { OPERATIONS, type Operations } from "./schema.js";

/** The name of an operation: method and path. */
export type Operation = keyof Operations;

/** The answer of an operation. */
export type Answer<O extends Operation> = Operations[O]["answer"];

/** What is given for each header; one that the document has and this does not is a fault that the compiler finds. */
interface HeaderFields {
  "idempotency-key": {
    /** Names this change: repeated with the same key it takes effect once. One is drawn where none is given. */
    readonly idempotency_key?: string | undefined;
  };
  "if-match": {
    /** The version that the session has to be at, or the call is refused (412). */
    readonly if_match?: number | undefined;
  };
  "last-event-id": object; // the stream's own affair
}

type All<U> = (U extends unknown ? (one: U) => void : never) extends (one: infer I) => void ? I : never;
type Given<H extends keyof HeaderFields> = [H] extends [never] ? object : All<HeaderFields[H]>;

/** Everything that an operation takes, path, query, headers and body alike, by the names of the document. */
export type Fields<O extends Operation> = Operations[O]["parameters"] &
  Operations[O]["body"] &
  Given<Operations[O]["headers"]>;

/** Of every method. */
export interface CallOptions {
  /** Ends the call: it rejects with the signal's reason. What was sent may still be done. */
  readonly signal?: AbortSignal | undefined;
}

/** Fields of an operation that its method does not set by itself. */
export type Options<O extends Operation, Own extends string = never> = Omit<Fields<O>, Own> & CallOptions;

/** Fields by name, whatever the operation. */
type Loose = Readonly<Record<string, unknown>>;

interface Row {
  readonly query: readonly string[];
  readonly headers: readonly string[];
  readonly body: Call<unknown>["form"];
  readonly answer: Call<unknown>["form"];
}

const SEGMENTS: Readonly<Record<string, RegExp>> = {
  session_id: /^[A-Za-z0-9_-]{1,128}$/u,
  snapshot: /^[A-Za-z0-9_-]{1,64}$/u,
};
const KEY = /^[\x21-\x7e]{1,200}$/u;

/** Build a call. A call that changes a session always carries an idempotency key. */
export function call<O extends Operation>(operation: O, fields: Fields<O> & CallOptions): Call<Answer<O>> {
  const row: Row = OPERATIONS[operation];
  const [method = "", template = ""] = operation.split(" ");
  const given: Record<string, unknown> = { ...fields };
  take(given, "signal");
  const path = template.replace(/\{(\w+)\}/gu, (_, name: string) => segment(name, take(given, name)));
  const query = new URLSearchParams();
  for (const name of row.query) {
    const value = take(given, name);
    if (value !== undefined && value !== null) {
      query.set(name, String(value));
    }
  }
  const headers = headersOf(row, given);
  return {
    method,
    path: query.size > 0 ? `${path}?${query}` : path,
    headers,
    body: bodyOf(row, given, headers),
    form: row.answer,
    choices: typeof given["n"] === "number" ? given["n"] : 1,
    resumable: row.headers.includes("last-event-id") && "idempotency-key" in headers,
    requestId: newKey(),
  };
}

function take(given: Record<string, unknown>, name: string): unknown {
  const value = given[name];
  delete given[name];
  return value;
}

function segment(name: string, value: unknown): string {
  if (typeof value !== "string" || !SEGMENTS[name]?.test(value)) {
    throw new RequestError(`${name} is not what a server can have given`);
  }
  return value;
}

function headersOf(row: Row, given: Record<string, unknown>): Record<string, string> {
  const [key, version] = [take(given, "idempotency_key"), take(given, "if_match")];
  const headers: Record<string, string> = {};
  // Generation changes a session only where the session keeps it.
  const kept = !row.headers.includes("last-event-id") || given["commit"];
  if (!kept && (key !== undefined || version !== undefined)) {
    throw new RequestError("if_match and idempotency_key are of a text that is kept: give commit: true too");
  }
  if (row.headers.includes("idempotency-key") && kept) {
    headers["idempotency-key"] = checkedKey(key ?? newKey());
    if (version !== undefined) {
      headers["if-match"] = `"${String(version)}"`;
    }
  }
  return headers;
}

function bodyOf(row: Row, given: Loose, headers: Record<string, string>): string | Blob | undefined {
  if (row.body === "json") {
    headers["content-type"] = "application/json";
    return encode(given);
  }
  if (row.body === "octets") {
    headers["content-type"] = "application/octet-stream";
    return given["data"] as Blob;
  }
  return undefined;
}

/** An idempotency key; one that no server takes is refused. */
export function checkedKey(key: unknown): string {
  if (typeof key !== "string" || !KEY.test(key)) {
    throw new RequestError("an idempotency key is 1 to 200 visible ASCII characters");
  }
  return key;
}
