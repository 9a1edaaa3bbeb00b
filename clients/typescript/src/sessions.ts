/** Sessions: streams of text with a state and weights of their own. */

import type { Connection, EventStream } from "./connection.js";
import type { StreamOptions } from "./frames.js";
import { type AppendOptions, AppendPlan, PIECE_BYTES, PieceBuffer, tell, withScores } from "./pieces.js";
import type {
  AppendAnswer,
  Candidate,
  CandidatesAnswer,
  ChangeAnswer,
  GenerateAnswer,
  CreatedSession,
  NoteAnswer,
  SessionInfo,
  SessionPage,
  SessionSnapshot,
  SnapshotAnswer,
} from "./schema.js";
import { TextStream } from "./streaming.js";
import { call, type CallOptions, type Options } from "./wire.js";

/** Of a session's `generate`. */
export type SessionGenerateOptions = Options<"POST /sessions/{session_id}/generate", "session_id" | "stream">;

/** Of `appendStream`, for every piece. */
export interface AppendStreamOptions extends Omit<AppendOptions, "if_match" | "idempotency_key" | "note"> {
  /** Texts are gathered until there are this many bytes of them; 1 sends each at once. */
  readonly gatherBytes?: number;
}

/** A handle on one session. It holds the id and remembers nothing else. */
export class Session {
  readonly id: string;
  /** The server's answer at create (with the first append, if a text was given), else null. */
  readonly created: CreatedSession | null;
  readonly #connection: Connection;

  constructor(connection: Connection, id: string, created: CreatedSession | null = null) {
    call("GET /sessions/{session_id}", { session_id: id }); // refuses what is no id
    this.#connection = connection;
    this.id = id;
    this.created = created;
  }

  /** Version, position, totals and the like; `min_version` refuses an older session. */
  info(options: Options<"GET /sessions/{session_id}", "session_id"> = {}): Promise<SessionInfo> {
    const made = call("GET /sessions/{session_id}", { ...options, session_id: this.id });
    return this.#connection.send(made, options.signal);
  }

  /** The newest note; `min_version` refuses an older session. */
  note(options: Options<"GET /sessions/{session_id}/note", "session_id"> = {}): Promise<NoteAnswer> {
    const made = call("GET /sessions/{session_id}/note", { ...options, session_id: this.id });
    return this.#connection.send(made, options.signal);
  }

  /** Change the time to live, the metadata, or whether appends may learn. */
  update(options: Options<"PATCH /sessions/{session_id}", "session_id">): Promise<ChangeAnswer> {
    const made = call("PATCH /sessions/{session_id}", { ...options, session_id: this.id });
    return this.#connection.send(made, options.signal);
  }

  /**
   * Score a text, or ids, then learn from it. A long text travels in pieces; the answers come back as one.
   *
   * Whatever error ends it has a `progress`, which says what of the text is in the session already.
   */
  async append(text: string | readonly number[], options: AppendOptions = {}): Promise<AppendAnswer> {
    const plan = new AppendPlan(this.id, text, options);
    try {
      return await this.#send(plan, options.signal);
    } catch (error) {
      throw tell(error, plan.progress());
    }
  }

  /**
   * Append texts as they come; gives an answer for each piece.
   *
   * `final` flushes the word in progress at the end; the newest piece then waits for the next. Whatever error
   * ends it, one of the texts' own too, has a `progress` that says what of them is in the session.
   */
  async *appendStream(
    texts: Iterable<string> | AsyncIterable<string>,
    options: AppendStreamOptions = {},
  ): AsyncGenerator<AppendAnswer, void, undefined> {
    const { gatherBytes = PIECE_BYTES, final = false, ...rest } = options;
    const buffer = new PieceBuffer(gatherBytes, final);
    try {
      for await (const text of texts) {
        for (const piece of buffer.feed(text)) {
          yield await this.#send(buffer.plan(this.id, piece, rest), rest.signal);
        }
      }
      const pieces = buffer.finish();
      for (const [index, piece] of pieces.entries()) {
        const last = final && index === pieces.length - 1;
        yield await this.#send(buffer.plan(this.id, piece, { ...rest, final: last }), rest.signal);
      }
    } catch (error) {
      throw tell(error, buffer.progress());
    }
  }

  /**
   * Append texts as they come over one connection, without waiting; gives an answer for each frame of them.
   *
   * A lost connection is made again, and every text takes effect once. `final` flushes the word in progress at
   * the end; the newest piece then waits for the next. Whatever error ends it, one of the texts' own too, has a
   * `progress` that says what of them is in the session.
   */
  stream(texts: Iterable<string> | AsyncIterable<string>, options: StreamOptions = {}): TextStream {
    return new TextStream(this.#connection, this.id, texts, options);
  }

  async #send(plan: AppendPlan, signal: AbortSignal | undefined): Promise<AppendAnswer> {
    for (let made = plan.next(); made !== undefined; made = plan.next()) {
      plan.add(await this.#connection.send(made, signal));
    }
    return plan.result;
  }

  /**
   * Rank up to 256 candidates against the session as it is; nothing changes.
   *
   * `weights` holds `lm`, `length` and `given`, the factors of a candidate's log-probability in `unit`, of its
   * number of tokens, and of its own `given`; `score` is the sum, and `static_score` the same by the weights as
   * loaded, where the session has a frozen baseline.
   */
  score(
    candidates: readonly (string | Candidate)[],
    options: Options<"POST /sessions/{session_id}/score", "session_id" | "candidates"> = {},
  ): Promise<CandidatesAnswer> {
    const made = call("POST /sessions/{session_id}/score", {
      ...options,
      session_id: this.id,
      candidates: candidates.map((row) => (typeof row === "string" ? { text: row } : row)),
    });
    return this.#connection.send(made, options.signal);
  }

  /**
   * Continue the session's text; `commit: true` keeps what was generated.
   *
   * A stream of text that is kept goes on by itself where it broke off; nothing comes twice.
   */
  generate(options: SessionGenerateOptions & { readonly stream: true }): Promise<EventStream>;
  generate(options?: SessionGenerateOptions & { readonly stream?: false }): Promise<GenerateAnswer>;
  async generate(
    options: SessionGenerateOptions & { readonly stream?: boolean } = {},
  ): Promise<GenerateAnswer | EventStream> {
    const made = call("POST /sessions/{session_id}/generate", { ...options, session_id: this.id });
    return options.stream
      ? this.#connection.stream(made, options.signal)
      : withScores(await this.#connection.send(made, options.signal));
  }

  /** Forget the fast weights, the recurrent state, or both. */
  reset(options: Options<"POST /sessions/{session_id}/reset", "session_id"> = {}): Promise<ChangeAnswer> {
    const made = call("POST /sessions/{session_id}/reset", { ...options, session_id: this.id });
    return this.#connection.send(made, options.signal);
  }

  /** Give the present version a name to go back to; no version is made. */
  snapshot(
    name: string,
    options: Options<"POST /sessions/{session_id}/snapshots", "session_id" | "name"> = {},
  ): Promise<SnapshotAnswer> {
    const made = call("POST /sessions/{session_id}/snapshots", { ...options, session_id: this.id, name });
    return this.#connection.send(made, options.signal);
  }

  /** All named snapshots, oldest version first. */
  async snapshots(
    options: Options<"GET /sessions/{session_id}/snapshots", "session_id"> = {},
  ): Promise<readonly SessionSnapshot[]> {
    const made = call("GET /sessions/{session_id}/snapshots", { ...options, session_id: this.id });
    return (await this.#connection.send(made, options.signal)).snapshots;
  }

  /** Remove a named snapshot; removing twice is no error. */
  async dropSnapshot(name: string, options: CallOptions = {}): Promise<void> {
    const fields = { session_id: this.id, snapshot: name };
    await this.#connection.send(call("DELETE /sessions/{session_id}/snapshots/{snapshot}", fields), options.signal);
  }

  /** Go back to a named snapshot: state, position and totals are as then, the version is a new one. */
  restore(
    snapshot: string,
    options: Options<"POST /sessions/{session_id}/restore", "session_id" | "snapshot"> = {},
  ): Promise<ChangeAnswer> {
    const made = call("POST /sessions/{session_id}/restore", { ...options, session_id: this.id, snapshot });
    return this.#connection.send(made, options.signal);
  }

  /** Make an independent copy of the session, as it is or as it was at a named snapshot. */
  async fork(options: Options<"POST /sessions/{session_id}/fork", "session_id"> = {}): Promise<Session> {
    const made = call("POST /sessions/{session_id}/fork", { ...options, session_id: this.id });
    const info = await this.#connection.send(made, options.signal);
    return new Session(this.#connection, info.id, info);
  }

  /** The session as a signed file, which `sessions.importSession` takes. */
  export(options: Options<"GET /sessions/{session_id}/export", "session_id"> = {}): Promise<Blob> {
    const made = call("GET /sessions/{session_id}/export", { ...options, session_id: this.id });
    return this.#connection.send(made, options.signal);
  }

  /** Delete the session for good; deleting twice is no error. */
  async delete(options: CallOptions = {}): Promise<void> {
    await this.#connection.send(call("DELETE /sessions/{session_id}", { session_id: this.id }), options.signal);
  }
}

/** The sessions of one server: `client.sessions`. */
export class Sessions {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** Create a session. */
  async create(options: Options<"POST /sessions"> = {}): Promise<Session> {
    const info = await this.#connection.send(call("POST /sessions", options), options.signal);
    return new Session(this.#connection, info.id, info);
  }

  /** Make a session of a file that `export` gave; it gets an id of its own. */
  async importSession(data: Blob, options: Options<"POST /sessions/import", "data"> = {}): Promise<Session> {
    const info = await this.#connection.send(call("POST /sessions/import", { ...options, data }), options.signal);
    return new Session(this.#connection, info.id, info);
  }

  /** A handle on a session that exists, without asking the server. */
  get(id: string): Session {
    return new Session(this.#connection, id);
  }

  /** One page of your sessions, oldest first. */
  page(options: Options<"GET /sessions"> = {}): Promise<SessionPage> {
    return this.#connection.send(call("GET /sessions", options), options.signal);
  }

  /** A handle on the session of a name; null where there is none. */
  async find(name: string, options: CallOptions = {}): Promise<Session | null> {
    // An older server does not know the question, and lists all.
    const found = (await this.page({ ...options, name })).sessions.find((one) => one.name === name);
    return found === undefined ? null : this.get(found.id);
  }

  /** Your sessions, oldest first. */
  async *list(options: CallOptions = {}): AsyncGenerator<SessionInfo, void, undefined> {
    let cursor: string | null = null;
    do {
      const page: SessionPage = await this.page({ ...options, cursor });
      yield* page.sessions;
      cursor = page.cursor;
    } while (cursor !== null);
  }
}
