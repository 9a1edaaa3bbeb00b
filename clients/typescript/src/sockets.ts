/** WebSockets as promises, and what their ends are called here. */

import type { RLSTMError } from "./errors.js";
import { ConnectionLostError, RequestError, TimedOutError } from "./errors.js";
import { fromProblem } from "./problems.js";

/** What is used of a WebSocket: the platform's, or one of a package. */
export interface WebSocketLike {
  onmessage: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  send(data: string): void;
  close(): void;
}

/** What makes one. */
export type WebSocketMaker = new (url: string, protocols: string[]) => WebSocketLike;

const PROTOCOL = "rlstm.v1";
/** What a subprotocol may be made of (RFC 9110: a token). */
const TOKEN = /^[\w!#$%&'*+.^`|~-]+$/u;
/** A closing code of the server's is this plus a status. */
const REFUSED = 4000;
const FRAME_TOO_LARGE = 1009;
const TOO_LARGE_STATUS = 413;

interface End {
  readonly code: number;
  readonly reason: string;
}

/** The platform's own maker of WebSockets, or the one that was given; throws where there is neither. */
export function checkedMaker(maker: WebSocketMaker | undefined): WebSocketMaker {
  const found = maker ?? (globalThis as { readonly WebSocket?: WebSocketMaker }).WebSocket;
  if (found === undefined) {
    throw new RequestError(
      "there is no WebSocket here: run Node 22, or node --experimental-websocket," +
        " or give the one of a package: new Client(url, { WebSocket })",
    );
  }
  return found;
}

/** The subprotocols to ask for. A page sets no headers of a WebSocket: its key goes as one of them. */
export function protocols(apiKey: string | undefined): string[] {
  if (apiKey === undefined) {
    return [PROTOCOL];
  }
  if (!TOKEN.test(apiKey)) {
    throw new RequestError("the API key holds characters that no WebSocket can carry: letters, digits and -._~ are safe");
  }
  return [PROTOCOL, `bearer.${apiKey}`];
}

/** One connection: frames up, each of them answered in its turn. */
export class Socket {
  readonly #socket: WebSocketLike;
  readonly #where: string;
  readonly #milliseconds: number;
  readonly #messages: unknown[] = [];
  #greeted = false;
  #owed = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #expired = false;
  #end: End | undefined;
  #wake = (): void => {};

  /** Frames that nothing is heard of for so many `seconds` end the connection. */
  constructor(Maker: WebSocketMaker, url: string, protocols: string[], seconds: number) {
    this.#where = new URL(url).host;
    this.#milliseconds = seconds * 1000;
    try {
      this.#socket = new Maker(url, protocols);
    } catch (error) {
      throw new RequestError(`the platform makes no WebSocket of this address: ${String(error)}`, { cause: error });
    }
    this.#socket.onmessage = ({ data }: { readonly data: unknown }): void => this.#heard(data);
    this.#socket.onclose = ({ code, reason }: End): void => this.#over({ code, reason });
    // Where a handshake fails, Node tells of no close; the codes are those that a browser has for it.
    this.#socket.onerror = (): void => this.#over({ code: 1006, reason: "" });
  }

  /** Wait until the server has greeted; false if the connection ended before. */
  async opened(): Promise<boolean> {
    while (!this.#greeted && this.#end === undefined) {
      await this.#change();
    }
    return this.#greeted;
  }

  /** Send a frame; what a connection that has ended does not take, `receive` tells of. */
  send(frame: string): void {
    if (this.#end === undefined) {
      this.#owed += 1;
      this.#socket.send(frame);
      this.#timer ??= this.#patience();
    }
  }

  /** The next message; throws when the connection has ended and all that came before is read. */
  async receive(): Promise<unknown> {
    while (this.#messages.length === 0) {
      if (this.#end !== undefined) {
        throw this.#failure(this.#end);
      }
      await this.#change();
    }
    return this.#messages.shift();
  }

  /** End the connection. */
  close(): void {
    this.#over({ code: 1000, reason: "closed here" });
    this.#socket.close();
  }

  #change(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  #heard(data: unknown): void {
    if (this.#end !== undefined) {
      return;
    }
    this.#owed -= this.#greeted && this.#owed > 0 ? 1 : 0;
    this.#greeted = true;
    this.#messages.push(data);
    clearTimeout(this.#timer);
    this.#timer = this.#owed > 0 ? this.#patience() : undefined;
    this.#wake();
  }

  #over(end: End): void {
    this.#end ??= end;
    clearTimeout(this.#timer);
    this.#wake();
  }

  #patience(): ReturnType<typeof setTimeout> {
    return setTimeout(() => {
      this.#expired = true;
      this.close();
    }, this.#milliseconds);
  }

  #failure({ code, reason }: End): RLSTMError {
    const applied = this.#owed > 0 ? "unknown" : "no";
    if (this.#expired) {
      return new TimedOutError(`no answer from ${this.#where} in time`, { applied });
    }
    if (code === FRAME_TOO_LARGE) {
      const detail = reason || "a frame was too large for the server, or for a proxy in between";
      return fromProblem(TOO_LARGE_STATUS, { detail, applied });
    }
    if (code >= REFUSED + 400 && code < REFUSED + 600) {
      return fromProblem(code - REFUSED, { detail: reason, applied });
    }
    return new ConnectionLostError(`the connection to ${this.#where} was lost: ${`${code} ${reason}`.trim()}`, { applied });
  }
}
