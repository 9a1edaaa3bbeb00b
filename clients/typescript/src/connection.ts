/** What carries the calls: they are sent, and sent again where that is safe. */

import type { Call } from "./call.js";
import { changes, mediaTypeOf, read, unreadable } from "./call.js";
import {
  CannotConnectError,
  ConnectionLostError,
  type NoAnswerError,
  RequestError,
  RLSTMError,
  TimedOutError,
  UnreadableAnswerError,
  UpgradeRequiredError,
} from "./errors.js";
import { EventReader, type GenerationEvent } from "./events.js";
import { DEFAULT_RETRIES, type Retries, stillOpen, waitFor } from "./retries.js";
import { checkedMaker, protocols, Socket, type WebSocketMaker } from "./sockets.js";
import { Watch } from "./watch.js";

export const DEFAULT_URL = "http://127.0.0.1:8000";
const DEFAULT_TIMEOUT = 600;
const OPEN_SECONDS = 10;

// What Node says; browsers say nothing.
const NOTHING_WAS_SENT = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "UND_ERR_CONNECT_TIMEOUT"];
const TIMED_OUT = ["UND_ERR_HEADERS_TIMEOUT", "UND_ERR_BODY_TIMEOUT"];

/** How to talk to a server. */
export interface ClientOptions {
  /** Sent as a bearer token. */
  readonly apiKey?: string | undefined;
  /** Seconds of silence before a call is given up; the default waits long, since learning takes its time. */
  readonly timeout?: number;
  /** How often a call is repeated; what could be done twice never is. */
  readonly retries?: Partial<Retries>;
  /** In place of the platform's `fetch`. */
  readonly fetch?: typeof fetch;
  /** In place of the platform's `WebSocket`, which Node has from version 22 on. */
  readonly WebSocket?: WebSocketMaker;
  /** The clock of the waits between attempts. */
  readonly sleep?: (seconds: number, signal?: AbortSignal) => Promise<void>;
  /** The random source of the waits, in [0, 1). */
  readonly chance?: () => number;
}

/** Sends calls to one server. */
export class Connection {
  readonly #url: string;
  readonly #apiKey: string | undefined;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #timeout: number;
  readonly #retries: Retries;
  readonly #fetch: typeof fetch;
  readonly #WebSocket: WebSocketMaker | undefined;
  readonly #sleep: (seconds: number, signal?: AbortSignal) => Promise<void>;
  readonly #chance: () => number;

  constructor(url: string | URL, options: ClientOptions) {
    this.#url = checkedUrl(url);
    this.#apiKey = options.apiKey;
    this.#headers = options.apiKey === undefined ? {} : { authorization: `Bearer ${checkedKey(options.apiKey)}` };
    this.#timeout = options.timeout ?? DEFAULT_TIMEOUT;
    this.#retries = { ...DEFAULT_RETRIES, ...options.retries };
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
    this.#WebSocket = options.WebSocket;
    this.#sleep = options.sleep ?? sleep;
    this.#chance = options.chance ?? Math.random;
  }

  /** Send a call and return its answer. */
  async send<T>(call: Call<T>, signal?: AbortSignal): Promise<T> {
    for (let attempt = 1, doubt = false; ; attempt += 1) {
      try {
        return await this.#exchange(call, signal);
      } catch (error) {
        doubt = error instanceof RLSTMError && stillOpen(error, doubt);
        await this.pause(call, error, attempt, signal);
      }
    }
  }

  /** Send a call and return its events, once the first has come: what is refused is refused at once. */
  async stream(call: Call<unknown>, signal?: AbortSignal): Promise<EventStream> {
    const closing = new AbortController();
    const events = this.#events(new EventReader(call), closing.signal, signal);
    return new EventStream(events, await events.next(), closing);
  }

  async *#events(
    reader: EventReader,
    closed: AbortSignal,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<GenerationEvent, undefined, undefined> {
    for (let attempt = 1; ; attempt += 1) {
      reader.reconnected();
      const watch = new Watch(this.#timeout, [signal, closed]);
      try {
        for await (const chunk of this.#chunks(reader.call, watch, signal)) {
          for (const event of reader.feed(chunk)) {
            attempt = 1;
            yield event;
          }
        }
        reader.finish();
        return;
      } catch (error) {
        if (reader.complete || closed.aborted) {
          return;
        }
        if (!reader.goesOn) {
          throw error;
        }
        await this.pause(reader.call, error, attempt, signal);
      } finally {
        watch.end();
      }
    }
  }

  /** Send a call and give the bytes of its stream as they come. */
  async *#chunks(
    call: Call<unknown>,
    watch: Watch,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      const response = await watch.during(this.#open(call, watch));
      if (response.status >= 400) {
        await read(call, response); // throws what the server refused with
      }
      if (!response.ok || mediaTypeOf(response) !== "text/event-stream" || response.body === null) {
        throw unreadable(call, response, "the answer is not a stream of events");
      }
      const body = response.body.getReader();
      for (;;) {
        const { done, value } = await watch.during(body.read());
        if (done) {
          return;
        }
        yield value;
      }
    } catch (error) {
      throw this.#named(error, call, watch, signal);
    } finally {
      watch.abort(); // an answer that nobody reads further ends at the server too
    }
  }

  /** Open a WebSocket for a call. Browsers do not tell why one was refused, so the server is asked then. */
  async socket(call: Call<unknown>, signal: AbortSignal): Promise<Socket> {
    const [maker, offered] = [checkedMaker(this.#WebSocket), protocols(this.#apiKey)];
    const watch = new Watch(Math.min(OPEN_SECONDS, this.#timeout), [signal]);
    const socket = new Socket(maker, this.#url.replace("http", "ws") + call.path, offered, this.#timeout);
    watch.signal.addEventListener("abort", () => socket.close());
    try {
      if (await watch.during(socket.opened())) {
        return socket;
      }
    } finally {
      watch.end();
    }
    signal.throwIfAborted();
    const where = new URL(this.#url).origin;
    if (watch.expired) {
      throw new TimedOutError(`no WebSocket from ${where} in time`);
    }
    try {
      await this.#exchange({ ...call, method: "GET", headers: {} }, signal);
    } catch (error) {
      if (error instanceof UpgradeRequiredError) {
        throw new ConnectionLostError(`${where} answers, but a WebSocket to it was lost before it was open`);
      }
      throw error;
    }
    throw new UnreadableAnswerError(`what answers at ${where} opens no WebSocket`);
  }

  async #exchange<T>(call: Call<T>, signal: AbortSignal | undefined): Promise<T> {
    const watch = new Watch(this.#timeout, [signal]);
    try {
      return await watch.during(this.#open(call, watch).then((response) => read(call, response)));
    } catch (error) {
      throw this.#named(error, call, watch, signal);
    } finally {
      watch.end();
    }
  }

  #open(call: Call<unknown>, watch: Watch): Promise<Response> {
    return this.#fetch(this.#url + call.path, {
      method: call.method,
      headers: { ...this.#headers, ...call.headers, "x-request-id": call.requestId },
      body: call.body ?? null,
      signal: watch.signal,
      redirect: "manual", // one that was followed would carry the key to another host
    });
  }

  /** Wait before the next attempt; throw the error when there is none. */
  async pause(call: Call<unknown>, error: unknown, attempt: number, signal: AbortSignal | undefined): Promise<void> {
    if (!(error instanceof RLSTMError)) {
      throw error;
    }
    const wait = waitFor(this.#retries, call, error, attempt, this.#chance());
    if (wait === null) {
      throw error;
    }
    await this.#sleep(wait, signal);
    signal?.throwIfAborted();
  }

  /** The error for what `fetch` threw; a call that reads cannot have changed anything. */
  #named(error: unknown, call: Call<unknown>, watch: Watch, signal: AbortSignal | undefined): unknown {
    if (error instanceof RLSTMError) {
      return error;
    }
    if (signal?.aborted) {
      return signal.reason;
    }
    const where = new URL(this.#url).origin;
    const code = codeOf(error);
    if (NOTHING_WAS_SENT.includes(code)) {
      return new CannotConnectError(`cannot connect to ${where}: ${code}`, { cause: error });
    }
    const details = { applied: changes(call) ? "unknown" : "no", requestId: call.requestId, cause: error } as const;
    let named: NoAnswerError;
    if (watch.expired || TIMED_OUT.includes(code)) {
      named = new TimedOutError(`no answer from ${where} in time`, details);
    } else {
      named = new ConnectionLostError(`the connection to ${where} was lost: ${code || String(error)}`, details);
    }
    return named;
  }
}

/** The events of one generation. Leave the loop over it, or close it, to end the generation early. */
export class EventStream implements AsyncIterableIterator<GenerationEvent, undefined, undefined> {
  readonly #events: AsyncGenerator<GenerationEvent, undefined, undefined>;
  readonly #closing: AbortController;
  #first: IteratorResult<GenerationEvent, undefined> | undefined;

  constructor(
    events: AsyncGenerator<GenerationEvent, undefined, undefined>,
    first: IteratorResult<GenerationEvent, undefined>,
    closing: AbortController,
  ) {
    this.#events = events;
    this.#first = first;
    this.#closing = closing;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<GenerationEvent, undefined>> {
    const first = this.#first;
    this.#first = undefined;
    return first ?? this.#events.next();
  }

  /** Close the stream: what a loop calls that is left early. */
  async return(): Promise<IteratorResult<GenerationEvent, undefined>> {
    this.#first = undefined;
    this.#closing.abort();
    return this.#events.return(undefined);
  }

  /** Close the connection; the server then stops. */
  async close(): Promise<void> {
    await this.return();
  }
}

function checkedUrl(url: string | URL): string {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch (error) {
    throw new RequestError(`the server's address is not a URL of the form http://host:port`, { cause: error });
  }
  if (parsed.protocol !== "http:" && parsed.protocol !== "https:") {
    throw new RequestError("the server's address is not a URL of the form http://host:port");
  }
  return parsed.origin + parsed.pathname.replace(/\/+$/u, "");
}

function checkedKey(apiKey: string): string {
  if (!/^[\x20-\x7e]+$/u.test(apiKey)) {
    throw new RequestError("the API key is empty or holds characters that no header can carry");
  }
  return apiKey;
}

/** The word that Node has for a failed `fetch`; browsers have none. */
function codeOf(error: unknown): string {
  const cause: unknown = error instanceof Error ? error.cause : undefined;
  const code: unknown = typeof cause === "object" && cause !== null && "code" in cause ? cause.code : undefined;
  return typeof code === "string" ? code : "";
}

function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, seconds * 1000);
    signal?.addEventListener("abort", end);
  });
}
