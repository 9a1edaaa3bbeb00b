// Written by schema.py from the server's OpenAPI document. Do not edit.

/** How a text is learned from, with nothing left open. */
export interface AdaptationChoice {
  readonly kind: "full" | "subspace" | "output_bias";
  /** Numbers that each expert may change. */
  readonly num_fast_weights: number;
  readonly experts: number;
  readonly rate_scale: number;
  readonly static: boolean;
  /** The learning rate of each expert; the static one's is 0. */
  readonly rates: readonly number[];
}

/** How to learn. Segment and reduction come from the checkpoint, as do kinds and sizes: see `/info`. */
export interface AdaptationRequest {
  /** What may change: of the checkpoint's rules; default: its first that fits. */
  readonly kind?: "full" | "subspace" | "output_bias" | null;
  /** How many numbers that is: likewise. */
  readonly num_fast_weights?: number | null;
  /** Learning rates that are mixed, of several the first static: 2 unless `static` is false. */
  readonly experts?: 1 | 2 | 4 | null;
  /** Multiplies the calibrated rate; 0 never learns. Default: 1.0. */
  readonly rate_scale?: number;
  /** Carry the static reference, so that the gain is exact. Needed by experts. Default: true. */
  readonly static?: boolean;
}

/** The most probable alternatives at each token, best first. */
export interface Alternatives {
  readonly ids: readonly (readonly number[])[];
  readonly logprobs: readonly (readonly number[])[];
}

/** Where a session's history began. */
export interface Ancestor {
  readonly session: string;
  readonly version: number;
  /** The name of that version, if the fork asked for it by name. */
  readonly snapshot: string | null;
}

/** What an append did. */
export interface AppendAnswer {
  readonly version: number;
  readonly position: number;
  /** What the change survives: fsync, replica or memory. */
  readonly durability: string;
  /** The key was seen before: this is what happened then. */
  readonly replayed: boolean;
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit: "nats" | "bits" | "log10";
  readonly ids?: readonly number[];
  readonly logprobs?: readonly number[];
  /** Under the weights as loaded. */
  readonly static_logprobs?: readonly number[];
  /** 1 is the most probable token. */
  readonly ranks?: readonly number[];
  /** Of the whole distribution at the token. */
  readonly entropies?: readonly number[];
  /** First code point of the token's span. */
  readonly starts?: readonly number[];
  /** Code point after the span. */
  readonly ends?: readonly number[];
  /** The most probable tokens at each place, where they were asked for. */
  readonly top?: Alternatives;
  /** Whether it could be learned from: asked for, and the session's is on. Default: true. */
  readonly learn: boolean;
  /** Segments learned from. */
  readonly updates: number;
  /** What kept learning in bounds, and how often: `step_skipped`, `projected`, `restarted` (once a row); `reset`, `frozen` (once a segment). */
  readonly guards: { readonly [name: string]: number };
  /** How much each expert counts in the next prediction; they sum to 1. */
  readonly weights: readonly number[];
  /** Norm of the fast weights over that of the loaded ones: the greatest expert's. */
  readonly norm_ratio: number;
  readonly pending: number;
  readonly totals?: Totals;
  readonly expires_at: number | null;
  /** False of a repeat whose columns are no longer stored; the text was applied. Default: true. */
  readonly scores_stored: boolean;
}

/** The next piece of the session's stream: scored with the weights as they are, then learned from. */
export interface AppendRequest {
  /** Text. Give this or `tokens`. */
  readonly text?: string | null;
  /** Ids of the model's vocabulary. Give this or `text`. */
  readonly tokens?: readonly number[] | null;
  /** Learn from it after scoring it. Default: true. */
  readonly learn?: boolean;
  /** The text ends here: score the word in progress too. Default: false. */
  readonly final?: boolean;
  /** Per-token columns, sums only, or neither. Default: "tokens". */
  readonly scores?: "none" | "totals" | "tokens";
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit?: "nats" | "bits" | "log10";
}

/** One continuation to rank. */
export interface Candidate {
  /** Text. Give this or `tokens`. */
  readonly text?: string | null;
  /** Ids of the model's vocabulary. Give this or `text`. */
  readonly tokens?: readonly number[] | null;
  /** Comes back with the score; default: its index. */
  readonly id?: string | null;
  /** A score from elsewhere, such as an acoustic model's. Default: 0.0. */
  readonly given?: number;
}

/** score = lm * logprob + length * tokens + given * given, with logprob in the answer's unit. */
export interface CandidateWeights {
  /** Default: 1.0. */
  readonly lm?: number;
  /** Default: 0.0. */
  readonly length?: number;
  /** Default: 0.0. */
  readonly given?: number;
}

/** The candidates in the order they were given, and the version that was read. */
export interface CandidatesAnswer {
  readonly version: number;
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit: "nats" | "bits" | "log10";
  readonly candidates: readonly RankedCandidate[];
}

/** Continuations to rank against the session as it is; nothing changes. */
export interface CandidatesRequest {
  readonly candidates: readonly Candidate[];
  /** Default: {"lm": 1.0, "length": 0.0, "given": 0.0}. */
  readonly weights?: CandidateWeights;
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit?: "nats" | "bits" | "log10";
  /** Refuse (412) an older session. */
  readonly min_version?: number | null;
}

/** A session after a change. */
export interface ChangeAnswer {
  readonly id: string;
  readonly name: string | null;
  readonly version: number;
  /** Tokens read. */
  readonly position: number;
  readonly created_at: number;
  readonly expires_at: number | null;
  readonly state_bytes: number;
  readonly adaptation: AdaptationChoice;
  /** How much each expert counts in the next prediction; they sum to 1. */
  readonly weights: readonly number[];
  /** Norm of the fast weights over that of the loaded ones: the greatest expert's. */
  readonly norm_ratio: number;
  readonly totals: SessionTotals;
  /** Characters held back until the word is complete; at most 4,096. */
  readonly pending: number;
  readonly metadata: { readonly [name: string]: JsonValue };
  /** Whether appends may learn. Default: true. */
  readonly learning: boolean;
  /** Of a fork or an import: where its history began. */
  readonly forked_from: Ancestor | null;
  /** As it was called where the session was last changed; null, as are the fingerprints, for a session of an older server. */
  readonly model: string | null;
  /** Of the model's weights and vocabulary. */
  readonly fingerprint: string | null;
  /** Of its calibration. */
  readonly adaptation_fingerprint: string | null;
  readonly durability: string;
  readonly replayed: boolean;
}

/** One continuation. */
export interface Continuation {
  readonly index: number;
  readonly text: string;
  readonly ids: readonly number[];
  readonly logprobs: readonly number[] | null;
  readonly finish_reason: "stop" | "length";
}

/** A new session; every field is optional. */
export interface CreateSession {
  /** Of those that `/info` names; default: the first. */
  readonly model?: string | null;
  /** Unique among your sessions. */
  readonly name?: string | null;
  /** How the session learns. Default: {"rate_scale": 1.0, "static": true}. */
  readonly adaptation?: AdaptationRequest;
  /** It expires this long after its last change. */
  readonly ttl_seconds?: number | null;
  /** Your own notes; at most 16 kB, not looked at. Default: {}. */
  readonly metadata?: { readonly [name: string]: string | number | boolean | null };
  /** Text. Give this or `tokens`. */
  readonly text?: string | null;
  /** Ids of the model's vocabulary. Give this or `text`. */
  readonly tokens?: readonly number[] | null;
  /** Per-token columns, sums only, or neither. Default: "tokens". */
  readonly scores?: "none" | "totals" | "tokens";
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit?: "nats" | "bits" | "log10";
}

/** The new session (or, replayed, the one that the key made), with the answer to its first text. */
export interface CreatedSession {
  readonly id: string;
  readonly name: string | null;
  readonly version: number;
  /** Tokens read. */
  readonly position: number;
  readonly created_at: number;
  readonly expires_at: number | null;
  readonly state_bytes: number;
  readonly adaptation: AdaptationChoice;
  /** How much each expert counts in the next prediction; they sum to 1. */
  readonly weights: readonly number[];
  /** Norm of the fast weights over that of the loaded ones: the greatest expert's. */
  readonly norm_ratio: number;
  readonly totals: SessionTotals;
  /** Characters held back until the word is complete; at most 4,096. */
  readonly pending: number;
  readonly metadata: { readonly [name: string]: JsonValue };
  /** Whether appends may learn. Default: true. */
  readonly learning: boolean;
  /** Of a fork or an import: where its history began. */
  readonly forked_from: Ancestor | null;
  /** As it was called where the session was last changed; null, as are the fingerprints, for a session of an older server. */
  readonly model: string | null;
  /** Of the model's weights and vocabulary. */
  readonly fingerprint: string | null;
  /** Of its calibration. */
  readonly adaptation_fingerprint: string | null;
  readonly durability: string;
  readonly replayed: boolean;
  readonly append?: AppendAnswer;
  /** Equal ids give equal bits. Null where another server made the session, with a model that is not served here. */
  readonly numerics: string | null;
}

/** Ids. */
export interface DetokenizeIn {
  /** A name that `/v1/models` lists; default: the first. */
  readonly model?: string | null;
  readonly tokens: readonly number[];
}

/** Their text. */
export interface DetokenizeOut {
  readonly prompt: string;
}

/** The end of a choice. */
export interface EndEvent {
  /** Of the choice. */
  readonly index: number;
  /** `stop`: a stop string; `length`: max_tokens. */
  readonly finish_reason: "stop" | "length";
  readonly seed: number;
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit: "nats" | "bits" | "log10";
  /** Of the session that keeps the text. */
  readonly version?: number;
  readonly position?: number;
  readonly durability?: string;
  readonly replayed?: boolean;
  readonly usage: Usage;
}

/** Why the connection is closed now, with a code of 4000 plus the status. */
export interface ErrorFrame {
  /** Default: "error". */
  readonly type: "error";
  /** Of the frame that it is about; null for what is no frame. */
  readonly seq: number | null;
  readonly problem: Problem;
}

/** A copy of a session; what is left out is the source's, but for the name. */
export interface ForkRequest {
  /** Unique among your sessions. */
  readonly name?: string | null;
  /** Copy the session as it was then, not as it is. */
  readonly snapshot?: string | null;
  /** It expires this long after its last change. */
  readonly ttl_seconds?: number | null;
  /** Your own notes. */
  readonly metadata?: { readonly [name: string]: string | number | boolean | null } | null;
  /** Refuse (412) an older session. */
  readonly min_version?: number | null;
}

/** The next piece of the session's stream. */
export interface Frame {
  /** Text. Give this or `tokens`. */
  readonly text?: string | null;
  /** Ids of the model's vocabulary. Give this or `text`. */
  readonly tokens?: readonly number[] | null;
  /** One more than the frame before. */
  readonly seq: number;
  /** Learn from it after scoring it. Default: true. */
  readonly learn?: boolean;
  /** The text ends here: score the word in progress too. Default: false. */
  readonly final?: boolean;
}

/** What the server sends over a WebSocket. */
export type FrameAnswer = ReadyFrame | ScoresFrame | ErrorFrame;

/** The first continuation in the open, and all of them under `choices` where there are several. */
export interface GenerateAnswer {
  readonly model: string;
  /** SHA-256 of weights and vocabulary. */
  readonly fingerprint: string;
  /** SHA-256 of the calibration. */
  readonly adaptation_fingerprint: string | null;
  /** Equal ids give equal bits. */
  readonly numerics: string;
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit: "nats" | "bits" | "log10";
  readonly seed: number;
  readonly text: string;
  readonly ids: readonly number[];
  /** Of the raw distribution; null where not asked for. */
  readonly logprobs: readonly number[] | null;
  /** `stop`: a stop string; `length`: max_tokens. */
  readonly finish_reason: "stop" | "length";
  readonly usage: Usage;
  readonly choices?: readonly Continuation[];
  /** Of the session that keeps the text. */
  readonly version?: number;
  readonly position?: number;
  readonly durability?: string;
  readonly replayed?: boolean;
}

/** A prompt and how to continue it. An empty prompt is the beginning of a text. */
export interface GenerateRequest {
  /** At most so many new tokens a choice. Default: 256. */
  readonly max_tokens?: number;
  /** Below 0.001: the most probable token. Default: 1.0. */
  readonly temperature?: number;
  /** Keep the k most probable tokens; 0 keeps all. Default: 0. */
  readonly top_k?: number;
  /** Keep the fewest tokens with this much probability. Default: 1.0. */
  readonly top_p?: number;
  /** Keep tokens this probable relative to the best. Default: 0.0. */
  readonly min_p?: number;
  /** On tokens seen before; 1 is none. Default: 1.0. */
  readonly repetition_penalty?: number;
  /** Same seed, same text; default: drawn, and told. */
  readonly seed?: number | null;
  /** Strings that end the text; up to 16; not part of it. Default: []. */
  readonly stop?: string | readonly string[];
  /** Report log-probabilities of the raw distribution. Default: true. */
  readonly logprobs?: boolean;
  /** Answer with server-sent events: token, end, error. Default: false. */
  readonly stream?: boolean;
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit?: "nats" | "bits" | "log10";
  /** The text to continue. Default: "". */
  readonly prompt?: string;
  /** The prompt as ids; not together with `prompt`. Default: []. */
  readonly tokens?: readonly number[];
  /** Of those that `/info` names; default: the first. */
  readonly model?: string | null;
  /** How many continuations. Default: 1. */
  readonly n?: number;
}

/** One item's scores. */
export interface ItemScores {
  readonly id: string;
  /** What token 0 was scored against. */
  readonly first_token: "bos" | "context" | "session" | "unscored";
  readonly ids?: readonly number[];
  readonly logprobs?: readonly number[];
  /** Under the weights as loaded. */
  readonly static_logprobs?: readonly number[];
  /** 1 is the most probable token. */
  readonly ranks?: readonly number[];
  /** Of the whole distribution at the token. */
  readonly entropies?: readonly number[];
  /** First code point of the token's span. */
  readonly starts?: readonly number[];
  /** Code point after the span. */
  readonly ends?: readonly number[];
  /** The most probable tokens at each place, where they were asked for. */
  readonly top?: Alternatives;
  /** Of each token that is not valid UTF-8 by itself; absent where all are. */
  readonly bytes?: readonly (readonly number[] | null)[];
  readonly words?: readonly WordScore[];
  readonly totals: Totals;
  /** Segments learned from inside the item. */
  readonly updates: number;
  /** What kept learning in bounds, and how often: `step_skipped`, `projected`, `restarted` (once a row); `reset`, `frozen` (once a segment). */
  readonly guards: { readonly [name: string]: number };
}

export type JsonValue = unknown;

/** An error (RFC 9457). The last part of `type` names it for programs. */
export interface Problem {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  /** Whether the change took effect. Of a request with a key it is `no` only where no earlier one with that key can have done it; where it is `unknown`, a repeat with the same key tells. */
  readonly applied: "no" | "yes" | "unknown";
  readonly request_id: string;
}

/** One candidate's sums; static figures are of the weights as loaded. Ties keep the order given. */
export interface RankedCandidate {
  readonly id: string;
  /** Sum, in the answer's unit. */
  readonly logprob: number;
  /** The same under the weights as loaded. */
  readonly static_logprob: number | null;
  readonly tokens: number;
  readonly score: number;
  /** The same mix with static_logprob. */
  readonly static_score: number | null;
  /** 1 is the highest score. */
  readonly rank: number;
  /** 1 is the highest static_score. */
  readonly static_rank: number | null;
  /** logprob - static_logprob: what learning saved. */
  readonly gain: number | null;
}

/** The first frame: the stream is open. */
export interface ReadyFrame {
  /** Default: "ready". */
  readonly type: "ready";
  /** Its name: frames that are sent again need it. */
  readonly stream: string;
  /** Of the session. */
  readonly version: number;
  /** Tokens read. */
  readonly position: number;
  /** Frames that may be under way. */
  readonly window: number;
  /** A longer frame closes the connection, with code 1009. */
  readonly frame_bytes: number;
}

/** What to forget; totals and position go on. */
export interface ResetRequest {
  /** Default: "both". */
  readonly what?: "fast_weights" | "recurrent" | "both";
}

/** Where to go back to. */
export interface RestoreRequest {
  /** The name of a snapshot of this session. */
  readonly snapshot: string;
}

/** The items in the order they were given, and how they were learned from, if they were. */
export interface ScoreAnswer {
  readonly model: string;
  /** SHA-256 of weights and vocabulary. */
  readonly fingerprint: string;
  /** SHA-256 of the calibration. */
  readonly adaptation_fingerprint: string | null;
  /** Equal ids give equal bits. */
  readonly numerics: string;
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit: "nats" | "bits" | "log10";
  /** How the items were learned from; absent where they were not. */
  readonly adaptation?: AdaptationChoice;
  readonly items: readonly ItemScores[];
}

/** One text, or its ids. */
export interface ScoreItem {
  /** Text. Give this or `tokens`. */
  readonly text?: string | null;
  /** Ids of the model's vocabulary. Give this or `text`. */
  readonly tokens?: readonly number[] | null;
  /** Comes back with the scores; default: its index. */
  readonly id?: string | null;
  /** Read before the text and scored against; not reported. Default: "". */
  readonly context?: string;
  /** The same as ids; not together with `context`. Default: []. */
  readonly context_tokens?: readonly number[];
}

/** Up to 256 items; or, in short, the fields of one item in their place. */
export interface ScoreRequest {
  /** The texts to score. */
  readonly items?: readonly ScoreItem[] | null;
  /** Text. Give this or `tokens`. */
  readonly text?: string | null;
  /** Ids of the model's vocabulary. Give this or `text`. */
  readonly tokens?: readonly number[] | null;
  /** Read before the text and scored against; not reported. Default: "". */
  readonly context?: string;
  /** The same as ids; not together with `context`. Default: []. */
  readonly context_tokens?: readonly number[];
  /** Of those that `/info` names; default: the first. */
  readonly model?: string | null;
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit?: "nats" | "bits" | "log10";
  /** Per-token columns, or sums only. Default: "tokens". */
  readonly scores?: "totals" | "tokens";
  /** Also sums over words. The white space before a word belongs to that word. Default: false. */
  readonly words?: boolean;
  /** Most probable alternatives to report at each token. Default: 0. */
  readonly top?: number;
  /** Learn inside each item, from the base weights. Default: false. */
  readonly adapt?: boolean;
  /** How; implies `adapt`. */
  readonly adaptation?: AdaptationRequest | null;
}

/** A frame is acknowledged: it was appended, and this is what that did. */
export interface ScoresFrame {
  /** Default: "scores". */
  readonly type: "scores";
  /** Of the frame. */
  readonly seq: number;
  readonly version: number;
  readonly position: number;
  /** What the change survives: fsync, replica or memory. */
  readonly durability: string;
  /** The key was seen before: this is what happened then. */
  readonly replayed: boolean;
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit: "nats" | "bits" | "log10";
  readonly ids?: readonly number[];
  readonly logprobs?: readonly number[];
  /** Under the weights as loaded. */
  readonly static_logprobs?: readonly number[];
  /** 1 is the most probable token. */
  readonly ranks?: readonly number[];
  /** Of the whole distribution at the token. */
  readonly entropies?: readonly number[];
  /** First code point of the token's span. */
  readonly starts?: readonly number[];
  /** Code point after the span. */
  readonly ends?: readonly number[];
  /** The most probable tokens at each place, where they were asked for. */
  readonly top?: Alternatives;
  /** Whether it could be learned from: asked for, and the session's is on. Default: true. */
  readonly learn: boolean;
  /** Segments learned from. */
  readonly updates: number;
  /** What kept learning in bounds, and how often: `step_skipped`, `projected`, `restarted` (once a row); `reset`, `frozen` (once a segment). */
  readonly guards: { readonly [name: string]: number };
  /** How much each expert counts in the next prediction; they sum to 1. */
  readonly weights: readonly number[];
  /** Norm of the fast weights over that of the loaded ones: the greatest expert's. */
  readonly norm_ratio: number;
  readonly pending: number;
  readonly totals?: Totals;
  readonly expires_at: number | null;
  /** False of a repeat whose columns are no longer stored; the text was applied. Default: true. */
  readonly scores_stored: boolean;
}

/** How to continue the session's text, and whether the session keeps it. */
export interface SessionGenerate {
  /** At most so many new tokens a choice. Default: 256. */
  readonly max_tokens?: number;
  /** Below 0.001: the most probable token. Default: 1.0. */
  readonly temperature?: number;
  /** Keep the k most probable tokens; 0 keeps all. Default: 0. */
  readonly top_k?: number;
  /** Keep the fewest tokens with this much probability. Default: 1.0. */
  readonly top_p?: number;
  /** Keep tokens this probable relative to the best. Default: 0.0. */
  readonly min_p?: number;
  /** On tokens seen before; 1 is none. Default: 1.0. */
  readonly repetition_penalty?: number;
  /** Same seed, same text; default: drawn, and told. */
  readonly seed?: number | null;
  /** Strings that end the text; up to 16; not part of it. Default: []. */
  readonly stop?: string | readonly string[];
  /** Report log-probabilities of the raw distribution. Default: true. */
  readonly logprobs?: boolean;
  /** Answer with server-sent events: token, end, error. Default: false. */
  readonly stream?: boolean;
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit?: "nats" | "bits" | "log10";
  /** The text becomes part of the session. Default: false. */
  readonly commit?: boolean;
  /** Also learn from it; needs `commit`. Default: false. */
  readonly learn_from_output?: boolean;
  /** Refuse (412) an older session. */
  readonly min_version?: number | null;
}

/** A session as the store has it. */
export interface SessionInfo {
  readonly id: string;
  readonly name: string | null;
  readonly version: number;
  /** Tokens read. */
  readonly position: number;
  readonly created_at: number;
  readonly expires_at: number | null;
  readonly state_bytes: number;
  readonly adaptation: AdaptationChoice;
  /** How much each expert counts in the next prediction; they sum to 1. */
  readonly weights: readonly number[];
  /** Norm of the fast weights over that of the loaded ones: the greatest expert's. */
  readonly norm_ratio: number;
  readonly totals: SessionTotals;
  /** Characters held back until the word is complete; at most 4,096. */
  readonly pending: number;
  readonly metadata: { readonly [name: string]: JsonValue };
  /** Whether appends may learn. Default: true. */
  readonly learning: boolean;
  /** Of a fork or an import: where its history began. */
  readonly forked_from: Ancestor | null;
  /** As it was called where the session was last changed; null, as are the fingerprints, for a session of an older server. */
  readonly model: string | null;
  /** Of the model's weights and vocabulary. */
  readonly fingerprint: string | null;
  /** Of its calibration. */
  readonly adaptation_fingerprint: string | null;
}

/** A page of your sessions, oldest first. */
export interface SessionPage {
  readonly sessions: readonly SessionInfo[];
  /** Fetches the next page; null at the end. */
  readonly cursor: string | null;
}

/** A named snapshot, and where the session stood when it was taken. */
export interface SessionSnapshot {
  readonly name: string;
  readonly version: number;
  readonly position: number;
  readonly created_at: number;
  readonly state_bytes: number;
  readonly totals: SessionTotals;
}

/** Sums over the session's life, in bits. Static figures are null without a frozen baseline. */
export interface SessionTotals {
  /** Default: 0. */
  readonly tokens: number;
  /** Default: 0. */
  readonly bytes: number;
  /** Under the session's own weights. Default: 0.0. */
  readonly adapted_bits: number;
  /** Under the weights as loaded; null without a frozen baseline. Default: 0.0. */
  readonly static_bits: number | null;
  /** Segments learned from. Default: 0. */
  readonly updates: number;
  /** Times that a guard acted. Default: 0. */
  readonly guards: number;
  /** static_bits - adapted_bits: what learning saved. */
  readonly gain: number | null;
}

/** A version that has a name now. */
export interface SnapshotAnswer {
  readonly name: string;
  readonly version: number;
  readonly position: number;
  readonly created_at: number;
  readonly state_bytes: number;
  readonly totals: SessionTotals;
  readonly durability: string;
  /** It had the name before. */
  readonly replayed: boolean;
}

/** A session's named snapshots, oldest version first. */
export interface SnapshotPage {
  readonly snapshots: readonly SessionSnapshot[];
}

/** The name for the present version. */
export interface SnapshotRequest {
  /** Unique in the session. */
  readonly name: string;
}

/** The next token of a choice, and the text that it completes: none in the middle of a character. */
export interface TokenEvent {
  /** Of the choice. */
  readonly index: number;
  /** How many tokens of the choice came before. */
  readonly step: number;
  readonly id: number;
  readonly text: string;
  /** Of the raw distribution; absent if not asked for. */
  readonly logprob?: number;
}

/** A text. */
export interface TokenizeIn {
  /** A name that `/v1/models` lists; default: the first. */
  readonly model?: string | null;
  readonly prompt: string;
  /** Put bos before it. Default: false. */
  readonly add_special_tokens?: boolean;
}

/** Its ids. */
export interface TokenizeOut {
  readonly count: number;
  readonly tokens: readonly number[];
}

/** What a client must know of the vocabulary. */
export interface TokenizerOut {
  readonly model: string;
  readonly kind: string;
  readonly vocab_size: number;
  readonly bos_token: string;
  readonly bos_token_id: number;
  readonly eos_token: string;
  readonly eos_token_id: number;
  readonly pad_token: string | null;
  /** Whether bos is read before a text that does not ask for it. */
  readonly add_bos_token: boolean;
}

/** Sums over the tokens of an answer. */
export interface Totals {
  /** Sum, in the answer's unit. */
  readonly logprob: number;
  /** The same under the weights as loaded. */
  readonly static_logprob: number | null;
  readonly tokens: number;
  /** Of the text in UTF-8. */
  readonly bytes: number;
  readonly words: number;
  /** Words outside the vocabulary. */
  readonly unknown: number;
  /** exp of the mean loss a token; null for no tokens. */
  readonly perplexity: number | null;
  /** Mean loss in bits a UTF-8 byte; None for no bytes. */
  readonly bits_per_byte: number | null;
  /** The same for the weights as loaded; None where they were not run. */
  readonly static_bits_per_byte: number | null;
  /** logprob - static_logprob: what learning saved. */
  readonly gain: number | null;
}

/** What to change; what is left out stays as it is. At least one field must be there. */
export interface UpdateRequest {
  /** From now on it expires this long after its last change. */
  readonly ttl_seconds?: number | null;
  /** Your own notes, in place of the old ones. */
  readonly metadata?: { readonly [name: string]: string | number | boolean | null } | null;
  /** Whether appends may learn; off, they only read, whatever they ask for. */
  readonly learning?: boolean | null;
}

/** Tokens read and made. */
export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  /** Both. */
  readonly total_tokens: number;
}

/** One word's sum. The white space before a word belongs to it; trailing white space is an entry. */
export interface WordScore {
  readonly start: number;
  readonly end: number;
  /** How many of them start in the word. */
  readonly tokens: number;
  readonly logprob: number;
  readonly static_logprob?: number;
}

/** What each operation takes and answers. */
export interface Operations {
  /** Score texts. Log-probabilities are of the raw distribution: finite, at most 0, at least -9999 nats. */
  "POST /score": {
    parameters: object;
    headers: never;
    body: ScoreRequest;
    answer: ScoreAnswer;
    event: never;
  };
  /** Continue a prompt. The same seed gives the same text, whatever else the server does. */
  "POST /generate": {
    parameters: object;
    headers: never;
    body: GenerateRequest;
    answer: GenerateAnswer;
    event: ({ readonly event: "token" } & TokenEvent) | ({ readonly event: "end" } & EndEvent) | ({ readonly event: "error" } & Problem);
  };
  /** Make a session; a first text is appended at once. */
  "POST /sessions": {
    parameters: object;
    headers: "idempotency-key";
    body: CreateSession;
    answer: CreatedSession;
    event: never;
  };
  /** List your sessions, oldest first, a page at a time; or find the one of a name. */
  "GET /sessions": {
    parameters: {
      /** Sessions on a page. Default: 100. */
      readonly limit?: number;
      /** As the page before gave it. */
      readonly cursor?: string | null;
      /** Only the session of this name; none where there is none. */
      readonly name?: string | null;
    };
    headers: never;
    body: object;
    answer: SessionPage;
    event: never;
  };
  /** Score this text with the weights as they are, then learn from it. */
  "POST /sessions/{session_id}/append": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key" | "if-match";
    body: AppendRequest;
    answer: AppendAnswer;
    event: never;
  };
  /** Rank continuations against the session as it is; nothing changes. */
  "POST /sessions/{session_id}/score": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: never;
    body: CandidatesRequest;
    answer: CandidatesAnswer;
    event: never;
  };
  /** Forget the fast weights, the recurrent state, or both. */
  "POST /sessions/{session_id}/reset": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key" | "if-match";
    body: ResetRequest;
    answer: ChangeAnswer;
    event: never;
  };
  /** Give the present version a name to go back to. No version is made. */
  "POST /sessions/{session_id}/snapshots": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key" | "if-match";
    body: SnapshotRequest;
    answer: SnapshotAnswer;
    event: never;
  };
  /** List a session's named snapshots, oldest version first. */
  "GET /sessions/{session_id}/snapshots": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
      /** Refuse (412) an older session. */
      readonly min_version?: number | null;
    };
    headers: never;
    body: object;
    answer: SnapshotPage;
    event: never;
  };
  /** Go back to a named snapshot: state, position and totals are as they were then, the version is new. */
  "POST /sessions/{session_id}/restore": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key" | "if-match";
    body: RestoreRequest;
    answer: ChangeAnswer;
    event: never;
  };
  /** Make an independent copy of a session, as it is or as it was at a named snapshot. */
  "POST /sessions/{session_id}/fork": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key";
    body: ForkRequest;
    answer: CreatedSession;
    event: never;
  };
  /** Tell where a session stands and what learning has saved it. */
  "GET /sessions/{session_id}": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
      /** Refuse (412) an older session. */
      readonly min_version?: number | null;
    };
    headers: never;
    body: object;
    answer: SessionInfo;
    event: never;
  };
  /** Change the time to live, the metadata, or whether appends may learn. */
  "PATCH /sessions/{session_id}": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key" | "if-match";
    body: UpdateRequest;
    answer: ChangeAnswer;
    event: never;
  };
  /** End a session for good. Repeating it is harmless. */
  "DELETE /sessions/{session_id}": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: never;
    body: object;
    answer: undefined;
    event: never;
  };
  /** Continue the session's text with its own weights; keep it in the session where asked. */
  "POST /sessions/{session_id}/generate": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key" | "if-match" | "last-event-id";
    body: SessionGenerate;
    answer: GenerateAnswer;
    event: ({ readonly event: "token" } & TokenEvent) | ({ readonly event: "end" } & EndEvent) | ({ readonly event: "error" } & Problem);
  };
  /** Remove a named snapshot. Repeating it is harmless. */
  "DELETE /sessions/{session_id}/snapshots/{snapshot}": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
      /** The snapshot's name. */
      readonly snapshot: string;
    };
    headers: never;
    body: object;
    answer: undefined;
    event: never;
  };
  /** Give the session as a safetensors file, which can be imported again where its model is served. */
  "GET /sessions/{session_id}/export": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
      /** Refuse (412) an older session. */
      readonly min_version?: number | null;
    };
    headers: never;
    body: object;
    answer: Blob;
    event: never;
  };
  /** Make a session of an exported file; it gets an id of its own. */
  "POST /sessions/import": {
    parameters: {
      /** Unique among your sessions. */
      readonly name?: string | null;
      /** It expires this long after its last change. */
      readonly ttl_seconds?: number | null;
    };
    headers: "idempotency-key";
    body: { readonly data: Blob };
    answer: CreatedSession;
    event: never;
  };
  /** Continuous text over a WebSocket of the subprotocol `rlstm.v1`: frames up, acknowledgements down. Each frame is appended, the next when the one before is acknowledged. A frame that is sent again under the stream's name takes effect once. A page, which sets no headers, gives its key as one more subprotocol, `bearer.<key>`. A request that is no WebSocket is refused as that would be, or else with 426: browsers do not tell why a WebSocket was refused. */
  "GET /sessions/{session_id}/stream": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
      /** Drawn by the sender: frames sent again need it. */
      readonly stream?: string | null;
      /** Per-token columns, sums only, or neither. Default: "tokens". */
      readonly scores?: "none" | "totals" | "tokens";
      /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
      readonly unit?: "nats" | "bits" | "log10";
    };
    headers: never;
    body: object;
    answer: undefined;
    event: never;
  };
  /** Answer as long as the process does; touches neither model nor store. */
  "GET /health/live": {
    parameters: object;
    headers: never;
    body: object;
    answer: unknown;
    event: never;
  };
  /** Answer 200 when work can be taken: model loaded, store reachable, not draining; else 503. */
  "GET /health/ready": {
    parameters: object;
    headers: never;
    body: object;
    answer: unknown;
    event: never;
  };
  /** Describe the model, the limits, the defaults and the version. */
  "GET /info": {
    parameters: object;
    headers: never;
    body: object;
    answer: unknown;
    event: never;
  };
  /** Write all metrics in Prometheus' text form. */
  "GET /metrics": {
    parameters: object;
    headers: never;
    body: object;
    answer: string;
    event: never;
  };
  /** Give a text's ids. */
  "POST /tokenize": {
    parameters: object;
    headers: never;
    body: TokenizeIn;
    answer: TokenizeOut;
    event: never;
  };
  /** Give the text of ids. Refused where they are no whole text: it could not become the same ids again. */
  "POST /detokenize": {
    parameters: object;
    headers: never;
    body: DetokenizeIn;
    answer: DetokenizeOut;
    event: never;
  };
  /** Describe a model's vocabulary. */
  "GET /tokenizer_info": {
    parameters: {
      /** Default: the first. */
      readonly model?: string | null;
    };
    headers: never;
    body: object;
    answer: TokenizerOut;
    event: never;
  };
}

/** How each operation is sent: its query, its headers, and the form of body and answer. */
export const OPERATIONS = {
  "POST /score": { query: [], headers: [], body: "json", answer: "json" },
  "POST /generate": { query: [], headers: [], body: "json", answer: "json" },
  "POST /sessions": { query: [], headers: ["idempotency-key"], body: "json", answer: "json" },
  "GET /sessions": { query: ["limit", "cursor", "name"], headers: [], body: "none", answer: "json" },
  "POST /sessions/{session_id}/append": { query: [], headers: ["idempotency-key", "if-match"], body: "json", answer: "json" },
  "POST /sessions/{session_id}/score": { query: [], headers: [], body: "json", answer: "json" },
  "POST /sessions/{session_id}/reset": { query: [], headers: ["idempotency-key", "if-match"], body: "json", answer: "json" },
  "POST /sessions/{session_id}/snapshots": { query: [], headers: ["idempotency-key", "if-match"], body: "json", answer: "json" },
  "GET /sessions/{session_id}/snapshots": { query: ["min_version"], headers: [], body: "none", answer: "json" },
  "POST /sessions/{session_id}/restore": { query: [], headers: ["idempotency-key", "if-match"], body: "json", answer: "json" },
  "POST /sessions/{session_id}/fork": { query: [], headers: ["idempotency-key"], body: "json", answer: "json" },
  "GET /sessions/{session_id}": { query: ["min_version"], headers: [], body: "none", answer: "json" },
  "PATCH /sessions/{session_id}": { query: [], headers: ["idempotency-key", "if-match"], body: "json", answer: "json" },
  "DELETE /sessions/{session_id}": { query: [], headers: [], body: "none", answer: "none" },
  "POST /sessions/{session_id}/generate": { query: [], headers: ["idempotency-key", "if-match", "last-event-id"], body: "json", answer: "json" },
  "DELETE /sessions/{session_id}/snapshots/{snapshot}": { query: [], headers: [], body: "none", answer: "none" },
  "GET /sessions/{session_id}/export": { query: ["min_version"], headers: [], body: "none", answer: "octets" },
  "POST /sessions/import": { query: ["name", "ttl_seconds"], headers: ["idempotency-key"], body: "octets", answer: "json" },
  "GET /sessions/{session_id}/stream": { query: ["stream", "scores", "unit"], headers: [], body: "none", answer: "none" },
  "GET /health/live": { query: [], headers: [], body: "none", answer: "json" },
  "GET /health/ready": { query: [], headers: [], body: "none", answer: "json" },
  "GET /info": { query: [], headers: [], body: "none", answer: "json" },
  "GET /metrics": { query: [], headers: [], body: "none", answer: "text" },
  "POST /tokenize": { query: [], headers: [], body: "json", answer: "json" },
  "POST /detokenize": { query: [], headers: [], body: "json", answer: "json" },
  "GET /tokenizer_info": { query: ["model"], headers: [], body: "none", answer: "json" },
} as const satisfies { readonly [name in keyof Operations]: object };
