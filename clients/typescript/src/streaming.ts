/** Continuous text over a WebSocket. */

import type { Connection } from "./connection.js";
import { RLSTMError } from "./errors.js";
import { FRAME_BYTES, Frames, type StreamOptions, WINDOW } from "./frames.js";
import { PieceBuffer, tell } from "./pieces.js";
import type { AppendAnswer } from "./schema.js";
import type { Socket } from "./sockets.js";

type Texts = Iterable<string> | AsyncIterable<string>;

/**
 * Sends texts as they come, and gives the answer to each frame.
 *
 * A text is asked for when there is room for it: frames are under way until their answers are taken from here.
 * After a cut it goes on over a new connection; every frame takes effect once. Leave the loop over it, close it,
 * or abort the signal, to end it early: frames that are under way may still take effect.
 */
export class TextStream implements AsyncIterableIterator<AppendAnswer, undefined, undefined> {
  readonly #connection: Connection;
  readonly #frames: Frames;
  readonly #texts: Texts;
  readonly #final: boolean;
  readonly #signal: AbortSignal | undefined;
  readonly #ending = new AbortController();
  readonly #answers: AsyncGenerator<AppendAnswer, undefined, undefined>;
  #socket: Socket | undefined;
  #iterator: Iterator<string> | AsyncIterator<string> | undefined;
  #exhausted = false;
  #sendingOver = false;
  #fault: { readonly error: unknown } | undefined;
  #makeRoom = (): void => {};

  constructor(connection: Connection, sessionId: string, texts: Texts, options: StreamOptions) {
    const { final = false, signal, ...rest } = options;
    this.#connection = connection;
    this.#frames = new Frames(sessionId, rest);
    this.#texts = texts;
    this.#final = final;
    this.#signal = signal;
    this.#answers = this.#run();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<AppendAnswer, undefined>> {
    return this.#answers.next();
  }

  /** End the stream: what a loop calls that is left early. */
  async return(): Promise<IteratorResult<AppendAnswer, undefined>> {
    this.#end();
    return this.#answers.return(undefined);
  }

  /** End the stream. */
  async close(): Promise<void> {
    await this.return();
  }

  // ---- what the reader does -------------------------------------------------------------------------------

  async *#run(): AsyncGenerator<AppendAnswer, undefined, undefined> {
    const abort = (): void => this.#end();
    this.#signal?.addEventListener("abort", abort);
    try {
      this.#signal?.throwIfAborted();
      yield* this.#read();
      this.#signal?.throwIfAborted();
      if (this.#fault !== undefined) {
        throw this.#fault.error;
      }
    } catch (error) {
      if (this.#signal?.aborted || !this.#ending.signal.aborted) {
        throw tell(this.#signal?.aborted ? this.#signal.reason : error, this.#frames.progress());
      }
    } finally {
      this.#signal?.removeEventListener("abort", abort);
      this.#end();
    }
  }

  async *#read(): AsyncGenerator<AppendAnswer, void, undefined> {
    for (let attempt = 1; !this.#isOver; attempt += 1) {
      try {
        const socket = await this.#open();
        while (!this.#isOver) {
          const answer = this.#frames.take(await socket.receive());
          if (answer !== undefined) {
            attempt = 1;
            this.#makeRoom();
            yield answer;
          }
        }
      } catch (error) {
        if (!this.#isOver) {
          await this.#connection.pause(this.#frames.call, error, attempt, this.#ending.signal);
        }
      }
    }
  }

  get #isOver(): boolean {
    return this.#ending.signal.aborted || (this.#sendingOver && this.#frames.unacknowledged.length === 0);
  }

  /** Connect, and send what was not acknowledged. */
  async #open(): Promise<Socket> {
    this.#socket?.close();
    try {
      this.#socket = await this.#connection.socket(this.#frames.call, this.#ending.signal);
    } catch (error) {
      if (error instanceof RLSTMError && error.applied === "no" && this.#frames.unacknowledged.length > 0) {
        error.applied = "unknown"; // whoever refuses a connection has not looked at what went over others
      }
      throw error;
    }
    for (const frame of this.#frames.unacknowledged) {
      this.#socket.send(frame);
    }
    if (this.#iterator === undefined) {
      this.#iterator = iterate(this.#texts);
      void this.#feed(this.#iterator);
    }
    return this.#socket;
  }

  /** Let go of everything; what waits for anything is woken. */
  #end(): void {
    this.#ending.abort();
    this.#socket?.close();
    this.#makeRoom();
    if (this.#iterator !== undefined && !this.#exhausted) {
      this.#exhausted = true;
      void leave(this.#iterator);
    }
  }

  // ---- what the sender does -------------------------------------------------------------------------------

  async #feed(iterator: Iterator<string> | AsyncIterator<string>): Promise<void> {
    const buffer = new PieceBuffer(1, this.#final, FRAME_BYTES);
    try {
      while (!this.#exhausted) {
        const { done = false, value } = await iterator.next();
        const pieces = done ? buffer.finish() : buffer.feed(value);
        this.#exhausted ||= done;
        for (const piece of pieces) {
          await this.#send(piece, done && this.#final);
        }
      }
    } catch (error) {
      this.#fault = { error }; // thrown where the answers are read
    }
    this.#sendingOver = true;
    if (this.#isOver) {
      this.#socket?.close(); // the reader waits for an answer that will not come
    }
  }

  async #send(piece: string, final: boolean): Promise<void> {
    while (!this.#isOver && this.#frames.unacknowledged.length >= WINDOW) {
      await new Promise<void>((resolve) => {
        this.#makeRoom = resolve;
      });
    }
    if (!this.#isOver) {
      this.#socket?.send(this.#frames.make(piece, final));
    }
  }
}

function iterate(texts: Texts): Iterator<string> | AsyncIterator<string> {
  return Symbol.asyncIterator in texts ? texts[Symbol.asyncIterator]() : texts[Symbol.iterator]();
}

/** Tell an iterator that nobody wants more of it. */
async function leave(iterator: Iterator<string> | AsyncIterator<string>): Promise<void> {
  try {
    await iterator.return?.();
  } catch {
    // The stream has ended, and there is nobody to tell.
  }
}
