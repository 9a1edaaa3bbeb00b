/** The client of one server. */

import { type ClientOptions, Connection, DEFAULT_URL, type EventStream } from "./connection.js";
import type { GenerateAnswer, GenerateRequest, ScoreRequest, ScoreAnswer, TokenizerOut } from "./schema.js";
import { Sessions } from "./sessions.js";
import { call, type CallOptions, type Options } from "./wire.js";

/** Live or ready. */
export interface Health {
  readonly status: string;
}

/** What the server runs: the model card, limits and defaults stay as the server names them. */
export interface ServerInfo {
  readonly model: unknown;
  readonly fingerprint: string;
  readonly version: string;
  readonly adaptation: unknown;
  readonly limits: { readonly [name: string]: unknown };
  readonly defaults: { readonly [name: string]: unknown };
  readonly [name: string]: unknown;
}

/** Of `generate`. */
export type GenerateOptions = Options<"POST /generate", "prompt" | "stream">;

/**
 * Talks to one server.
 *
 *     const client = new Client("http://127.0.0.1:8000");
 *     const { items } = await client.score("a text");
 *
 * Every method rejects with an `RLSTMError`; the module `errors` draws the tree.
 */
export class Client {
  readonly sessions: Sessions;
  readonly #connection: Connection;

  constructor(url: string | URL = DEFAULT_URL, options: ClientOptions = {}) {
    this.#connection = new Connection(url, options);
    this.sessions = new Sessions(this.#connection);
  }

  /** The log-probability of every token of a text, of ids, or of up to 256 items. */
  score(input: string | ScoreRequest, options: Options<"POST /score", "text"> = {}): Promise<ScoreAnswer> {
    const fields = typeof input === "string" ? { text: input } : input;
    return this.#connection.send(call("POST /score", { ...options, ...fields }), options.signal);
  }

  /** Continue a prompt; with `stream: true` its events as they come. */
  generate(
    prompt: string | Omit<GenerateRequest, "stream">,
    options: GenerateOptions & { readonly stream: true },
  ): Promise<EventStream>;
  generate(
    prompt: string | Omit<GenerateRequest, "stream">,
    options?: GenerateOptions & { readonly stream?: false },
  ): Promise<GenerateAnswer>;
  generate(
    prompt: string | Omit<GenerateRequest, "stream">,
    options: GenerateOptions & { readonly stream?: boolean } = {},
  ): Promise<GenerateAnswer | EventStream> {
    const fields = typeof prompt === "string" ? { prompt } : prompt;
    const made = call("POST /generate", { ...options, ...fields });
    return options.stream
      ? this.#connection.stream(made, options.signal)
      : this.#connection.send(made, options.signal);
  }

  /** A text's ids. */
  async tokenize(prompt: string, options: Options<"POST /tokenize", "prompt"> = {}): Promise<readonly number[]> {
    const made = call("POST /tokenize", { ...options, prompt });
    return (await this.#connection.send(made, options.signal)).tokens;
  }

  /** The text of ids. Those that are no whole text are refused. */
  async detokenize(tokens: readonly number[], options: Options<"POST /detokenize", "tokens"> = {}): Promise<string> {
    const made = call("POST /detokenize", { ...options, tokens });
    return (await this.#connection.send(made, options.signal)).prompt;
  }

  /** What is to be known of the vocabulary. */
  tokenizerInfo(options: Options<"GET /tokenizer_info"> = {}): Promise<TokenizerOut> {
    return this.#connection.send(call("GET /tokenizer_info", options), options.signal);
  }

  /** The model card, limits and defaults. */
  async info(options: CallOptions = {}): Promise<ServerInfo> {
    return (await this.#connection.send(call("GET /info", options), options.signal)) as ServerInfo;
  }

  /** Resolves if the process answers. */
  async live(options: CallOptions = {}): Promise<Health> {
    return (await this.#connection.send(call("GET /health/live", options), options.signal)) as Health;
  }

  /** Resolves if the server takes work; one that does not is an `UnavailableError`. */
  async ready(options: CallOptions = {}): Promise<Health> {
    return (await this.#connection.send(call("GET /health/ready", options), options.signal)) as Health;
  }

  /** The metrics in Prometheus' text format. */
  metrics(options: CallOptions = {}): Promise<string> {
    return this.#connection.send(call("GET /metrics", options), options.signal);
  }
}
