/** Frames of continuous text: numbered, kept until acknowledged, sent again. No input, no output. */

import type { Call } from "./call.js";
import { encode, json, newKey } from "./call.js";
import { type AppendProgress, type RLSTMError, UnreadableAnswerError } from "./errors.js";
import { fromProblem, isObject } from "./problems.js";
import type { AppendAnswer, Frame, FrameAnswer } from "./schema.js";
import { marked, withScores } from "./pieces.js";
import { call, type Options } from "./wire.js";

/** Frames under way: as many answers the server's store keeps whole, for a frame that is sent again. */
export const WINDOW = 8;
/** Of text in a frame: the answer about so many bytes is short enough to be kept whole, columns and all. */
export const FRAME_BYTES = 1024;
const FAULT_STATUS = 500;
const STREAM = "GET /sessions/{session_id}/stream";

/** Of a session's `stream`; `final` is of the last frame. */
export type StreamOptions = Options<typeof STREAM, "session_id" | "stream"> & Pick<Frame, "learn" | "final">;

interface Sent {
  readonly key: string;
  readonly text: string;
  readonly content: string;
}

/** The frames of one stream into a session, and the answers to them, which come in the same order. */
export class Frames {
  /** What the connections are opened with; its rules of repetition are those of a change with a key. */
  readonly call: Call<undefined>;
  readonly #name = newKey();
  readonly #learn: boolean | undefined;
  readonly #scores: StreamOptions["scores"];
  #open: Sent[] = [];
  #acknowledged = 0;
  #sent = 0;
  #length = 0;

  constructor(sessionId: string, { learn, ...options }: Omit<StreamOptions, "final">) {
    const asked = call(STREAM, { stream: this.#name, ...options, session_id: sessionId });
    this.call = { ...asked, method: "POST", headers: { "idempotency-key": this.#name }, resumable: true };
    this.#learn = learn;
    this.#scores = options.scores;
  }

  /** What is to be sent again on a new connection, in this order. */
  get unacknowledged(): readonly string[] {
    return this.#open.map(({ content }) => content);
  }

  /** Number a text and give the frame to send. */
  make(text: string, final: boolean): string {
    this.#sent += 1;
    const frame: Frame = { seq: this.#sent, text, learn: this.#learn, final: final || undefined };
    const content = encode(frame);
    this.#open.push({ key: `stream:${this.#name}:${this.#sent}`, text, content });
    return content;
  }

  /** Read what the server sent: the answer to the oldest frame, or undefined where it only greets. */
  take(message: unknown): AppendAnswer | undefined {
    const frame = parsed(message);
    switch (frame.type) {
      case "ready":
        return undefined;
      case "error": {
        const problem: Record<string, unknown> = isObject(frame.problem) ? { ...frame.problem } : {};
        const status = problem["status"];
        throw fromProblem(typeof status === "number" ? status : FAULT_STATUS, problem);
      }
      case "scores": {
        const { type, seq, ...answer } = frame;
        const oldest = this.#open[0];
        if (oldest === undefined || seq !== this.#acknowledged + 1) {
          throw unreadable("the server acknowledged what was not sent");
        }
        this.#open.shift();
        this.#acknowledged = seq;
        this.#length += oldest.text.length;
        return withScores(marked(answer, this.#scores));
      }
      default:
        throw unreadable("a frame is of no kind that is known here");
    }
  }

  /** How much of the whole stream is in the session for certain, and what is on its way. */
  progress(): AppendProgress {
    const [next, ...following] = this.#open.map(({ text, key }) => ({ piece: text, key }));
    return { answer: null, length: this.#length, piece: next?.piece ?? null, key: next?.key ?? null, following };
  }
}

function parsed(message: unknown): FrameAnswer {
  const value = typeof message === "string" ? json(message) : undefined;
  if (!isObject(value)) {
    throw unreadable("a frame is not a JSON object");
  }
  return value as unknown as FrameAnswer;
}

function unreadable(detail: string): RLSTMError {
  return new UnreadableAnswerError(detail, { applied: "unknown" });
}
