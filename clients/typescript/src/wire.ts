/** Every call of the HTTP interface, built from its fields; the types come from the server's document. */

import type { Call, Form } from "./call.js";
import { encode, newKey } from "./call.js";
import { RequestError } from "./errors.js";
import type { paths } from "./schema.js";

type Method = "get" | "post" | "patch" | "delete";
type Members<P extends keyof paths> = {
  [M in Method]: [Exclude<paths[P][M], undefined>] extends [never] ? never : `${Uppercase<M>} ${P}`;
}[Method];

/** The name of an operation: method and path. */
export type Operation = { [P in keyof paths]: Members<P> }[keyof paths];

type Described<O extends Operation> = O extends `${infer M} ${infer P extends keyof paths}`
  ? Exclude<paths[P][Lowercase<M> & Method], undefined>
  : never;
type Parameters<O extends Operation> = Described<O> extends { readonly parameters: infer P } ? P : never;
type Part<P, Name extends string> = P extends { readonly [N in Name]?: infer T }
  ? [NonNullable<T>] extends [never]
    ? object
    : NonNullable<T>
  : object;
type Content<T> = T extends { readonly content: { readonly "application/json": infer B } }
  ? B
  : T extends { readonly content: { readonly "application/octet-stream": unknown } }
    ? Blob
    : T extends { readonly content: { readonly "text/plain": infer B } }
      ? B
      : undefined;
type Body<O extends Operation> = Described<O> extends { readonly requestBody?: infer B }
  ? [Exclude<B, undefined>] extends [never]
    ? object
    : Content<Exclude<B, undefined>> extends Blob
      ? { readonly data: Blob }
      : Content<Exclude<B, undefined>>
  : object;

/** The answer of an operation. */
export type Answer<O extends Operation> = Described<O> extends { readonly responses: infer R }
  ? Content<R[keyof R]>
  : never;

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
type Headers<O extends Operation> = keyof Part<Parameters<O>, "header"> & keyof HeaderFields;
type Given<H extends keyof HeaderFields> = [H] extends [never] ? object : All<HeaderFields[H]>;
type Optional<T> = { readonly [N in keyof T]: T[N] | (undefined extends T[N] ? undefined : never) };

/** Everything that an operation takes, path, query, headers and body alike, by the names of the document. */
export type Fields<O extends Operation> = Part<Parameters<O>, "path"> &
  Optional<Part<Parameters<O>, "query">> &
  Body<O> &
  Given<Headers<O>>;

/** Of every method. */
export interface CallOptions {
  /** Ends the call: it rejects with the signal's reason. What was sent may still be done. */
  readonly signal?: AbortSignal | undefined;
}

/** Fields of an operation that its method does not set by itself. */
export type Options<O extends Operation, Own extends string = never> = Omit<Fields<O>, Own> & CallOptions;

type Keyed = { [O in Operation]: "idempotency-key" extends Headers<O> ? O : never }[Operation];

/** What changes something, and so has a key; where the document has another one the compiler finds it. */
const KEYED: { readonly [O in Keyed]: true } = {
  "POST /sessions": true,
  "POST /sessions/import": true,
  "PATCH /sessions/{session_id}": true,
  "POST /sessions/{session_id}/append": true,
  "POST /sessions/{session_id}/fork": true,
  "POST /sessions/{session_id}/generate": true,
  "POST /sessions/{session_id}/reset": true,
  "POST /sessions/{session_id}/restore": true,
  "POST /sessions/{session_id}/snapshots": true,
};
/** Operations whose answer is no JSON. */
const FORMS: { readonly [name in Operation]?: Form } = {
  "GET /metrics": "text",
  "GET /sessions/{session_id}/export": "octets",
  "DELETE /sessions/{session_id}": "none",
  "DELETE /sessions/{session_id}/snapshots/{snapshot}": "none",
};
const KEPT: Operation = "POST /sessions/{session_id}/generate";
const SEGMENTS: Readonly<Record<string, RegExp>> = {
  session_id: /^[A-Za-z0-9_-]{1,128}$/u,
  snapshot: /^[A-Za-z0-9_-]{1,64}$/u,
};
const KEY = /^[\x21-\x7e]{1,200}$/u;

/** Build a call. A call that changes a session always carries an idempotency key. */
export function call<O extends Operation>(operation: O, fields: Fields<O> & CallOptions): Call<Answer<O>> {
  const [method = "", template = ""] = operation.split(" ");
  const { signal, idempotency_key, if_match, data, ...given } = fields as Record<string, unknown>;
  const headers = headersOf(operation, given, idempotency_key, if_match);
  const path = template.replace(/\{(\w+)\}/gu, (_, name: string) => segment(name, take(given, name)));
  let body: string | Blob | undefined;
  if (data instanceof Blob) {
    headers["content-type"] = "application/octet-stream";
    body = data;
  } else if (method === "POST" || method === "PATCH") {
    headers["content-type"] = "application/json";
    body = encode(given);
  }
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(typeof body === "string" ? {} : given)) {
    if (value !== undefined && value !== null) {
      query.set(name, String(value));
    }
  }
  return {
    method,
    path: query.size > 0 ? `${path}?${query}` : path,
    headers,
    body,
    form: FORMS[operation] ?? "json",
    choices: typeof given["n"] === "number" ? given["n"] : 1,
    resumable: operation === KEPT && "idempotency-key" in headers,
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

function headersOf(
  operation: Operation,
  given: Readonly<Record<string, unknown>>,
  key: unknown,
  version: unknown,
): Record<string, string> {
  // Generation changes a session only where the session keeps it.
  const kept = operation !== KEPT || given["commit"];
  if (!kept && (key !== undefined || version !== undefined)) {
    throw new RequestError("if_match and idempotency_key are of a text that is kept: give commit: true too");
  }
  const headers: Record<string, string> = {};
  if (operation in KEYED && kept) {
    headers["idempotency-key"] = checkedKey(key ?? newKey());
    if (version !== undefined) {
      headers["if-match"] = `"${String(version)}"`;
    }
  }
  return headers;
}

/** An idempotency key; one that no server takes is refused. */
export function checkedKey(key: unknown): string {
  if (typeof key !== "string" || !KEY.test(key)) {
    throw new RequestError("an idempotency key is 1 to 200 visible ASCII characters");
  }
  return key;
}
