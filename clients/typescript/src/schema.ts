// Written by schema.py from the server's OpenAPI document. Do not edit.

/** How to learn. Segment and reduction come from the checkpoint, as do kinds and sizes: see `/info`. */
export interface AdaptationIn {
  /** What may change: of the checkpoint's rules; default: its first that fits. */
  readonly kind?: "full" | "subspace" | "sparse" | "output_bias" | null;
  /** How many numbers that is: likewise. */
  readonly num_fast_weights?: number | null;
  /** Learning rates that are mixed, of several the first static: 2 unless `static` is false. */
  readonly experts?: 1 | 2 | 4 | null;
  /** Multiplies the calibrated rate; 0 never learns. Default: 1.0. */
  readonly rate_scale?: number;
  /** Carry the static reference, so that the gain is exact. Needed by experts. Default: true. */
  readonly static?: boolean;
}

/** How a text is learned from. */
export interface AdaptationOut {
  readonly kind: "full" | "subspace" | "sparse" | "output_bias";
  /** Numbers that each expert may change. */
  readonly num_fast_weights: number;
  readonly experts: number;
  readonly rate_scale: number;
  readonly static: boolean;
  /** The learning rate of each expert; the static one's is 0. */
  readonly rates: readonly number[];
}

/** Where a session's history began. */
export interface AncestorOut {
  readonly session: string;
  readonly version: number;
  /** The name of that version, if the fork asked for it by name. */
  readonly snapshot: string | null;
}

/** The next piece of the session's stream: scored with the weights as they are, then learnt from. */
export interface AppendIn {
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

/** What an append did. */
export interface AppendOut {
  readonly ids?: readonly number[] | null;
  readonly logprobs?: readonly number[] | null;
  /** Under the weights as loaded. */
  readonly static_logprobs?: readonly number[] | null;
  /** 1 is the most probable token. */
  readonly ranks?: readonly number[] | null;
  /** Of the whole distribution at the token. */
  readonly entropies?: readonly number[] | null;
  /** First code point of the token's span. */
  readonly starts?: readonly number[] | null;
  /** Code point after the span. */
  readonly ends?: readonly number[] | null;
  readonly top?: TopOut | null;
  readonly version: number;
  readonly position: number;
  /** What the change survives: fsync, replica or memory. */
  readonly durability: string;
  /** The key was seen before: this is what happened then. */
  readonly replayed: boolean;
  /** Of every log-probability, entropy and gain in the answer. */
  readonly unit: "nats" | "bits" | "log10";
  /** Whether it could be learned from: asked for, and the session's is on. */
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
  readonly totals?: TotalsOut | null;
  readonly expires_at: number | null;
}

/** One continuation to rank. */
export interface CandidateIn {
  /** Comes back with the score; default: its index. */
  readonly id?: string | null;
  /** Text. Give this or `tokens`. */
  readonly text?: string | null;
  /** Ids of the model's vocabulary. Give this or `text`. */
  readonly tokens?: readonly number[] | null;
  /** A score from elsewhere, such as an acoustic model's. Default: 0.0. */
  readonly given?: number;
}

/** Continuations to rank against the session as it is; nothing changes. */
export interface CandidatesIn {
  readonly candidates: readonly CandidateIn[];
  /** Default: {"lm": 1.0, "length": 0.0, "given": 0.0}. */
  readonly weights?: WeightsIn;
  /** Of every log-probability, entropy and gain in the answer. Default: "nats". */
  readonly unit?: "nats" | "bits" | "log10";
  /** Refuse (412) an older session. */
  readonly min_version?: number | null;
}

/** The candidates in the order they were given. */
export interface CandidatesOut {
  readonly version: number;
  /** Of every log-probability, entropy and gain in the answer. */
  readonly unit: "nats" | "bits" | "log10";
  readonly candidates: readonly RankedOut[];
}

/** A session after a change. */
export interface ChangedOut {
  readonly id: string;
  readonly name: string | null;
  /** As it was called where the session was last changed; null, as are the fingerprints, for a session of an older server. */
  readonly model: string | null;
  /** Of the model's weights and vocabulary. */
  readonly fingerprint: string | null;
  /** Of its calibration. */
  readonly adaptation_fingerprint: string | null;
  readonly version: number;
  /** Tokens read. */
  readonly position: number;
  /** Characters held back until the word is complete; at most 4,096. */
  readonly pending: number;
  readonly created_at: number;
  readonly expires_at: number | null;
  readonly state_bytes: number;
  readonly adaptation: AdaptationOut;
  /** How much each expert counts in the next prediction; they sum to 1. */
  readonly weights: readonly number[];
  /** Norm of the fast weights over that of the loaded ones: the greatest expert's. */
  readonly norm_ratio: number;
  readonly totals: SessionTotalsOut;
  readonly metadata: { readonly [name: string]: JsonValue };
  /** Whether appends may learn. */
  readonly learning: boolean;
  /** Of a fork or an import: where its history began. */
  readonly forked_from: AncestorOut | null;
  /** Other numerics had a part in it: the same to 1e-4 nats a token, not to the bit. */
  readonly approx: boolean;
  readonly durability: string;
  readonly replayed: boolean;
}

/** The first continuation in the open, and all of them under `choices` where there are several. */
export interface ContinuationOut {
  readonly model: string;
  /** SHA-256 of weights and vocabulary. */
  readonly fingerprint: string;
  /** SHA-256 of the calibration. */
  readonly adaptation_fingerprint: string | null;
  /** Equal ids give equal bits. */
  readonly numerics: string;
  /** Of every log-probability, entropy and gain in the answer. */
  readonly unit: "nats" | "bits" | "log10";
  readonly seed: number;
  readonly text: string;
  readonly ids: readonly number[];
  /** Of the raw distribution; null where not asked for. */
  readonly logprobs: readonly number[] | null;
  /** `stop`: a stop string; `length`: max_tokens. */
  readonly finish_reason: string;
  readonly usage: UsageOut;
  readonly choices?: readonly ChoiceOut[] | null;
  /** Of the session that keeps the text. */
  readonly version?: number | null;
  readonly position?: number | null;
  readonly durability?: string | null;
  readonly replayed?: boolean | null;
}

/** How to continue the session's text, and whether the session keeps it. */
export interface ContinueIn {
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

/** A new session; every field is optional. */
export interface CreateIn {
  /** Of those that `/info` names; default: the first. */
  readonly model?: string | null;
  /** Unique among your sessions. */
  readonly name?: string | null;
  /** How the session learns. Default: {"rate_scale": 1.0, "static": true}. */
  readonly adaptation?: AdaptationIn;
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

/** The new session, with the answer to its first text. */
export interface CreatedOut {
  readonly id: string;
  readonly name: string | null;
  /** As it was called where the session was last changed; null, as are the fingerprints, for a session of an older server. */
  readonly model: string | null;
  /** Of the model's weights and vocabulary. */
  readonly fingerprint: string | null;
  /** Of its calibration. */
  readonly adaptation_fingerprint: string | null;
  readonly version: number;
  /** Tokens read. */
  readonly position: number;
  /** Characters held back until the word is complete; at most 4,096. */
  readonly pending: number;
  readonly created_at: number;
  readonly expires_at: number | null;
  readonly state_bytes: number;
  readonly adaptation: AdaptationOut;
  /** How much each expert counts in the next prediction; they sum to 1. */
  readonly weights: readonly number[];
  /** Norm of the fast weights over that of the loaded ones: the greatest expert's. */
  readonly norm_ratio: number;
  readonly totals: SessionTotalsOut;
  readonly metadata: { readonly [name: string]: JsonValue };
  /** Whether appends may learn. */
  readonly learning: boolean;
  /** Of a fork or an import: where its history began. */
  readonly forked_from: AncestorOut | null;
  /** Other numerics had a part in it: the same to 1e-4 nats a token, not to the bit. */
  readonly approx: boolean;
  /** Equal ids give equal bits. Null where another server made the session, with a model that is not served here. */
  readonly numerics: string | null;
  readonly durability: string;
  readonly replayed: boolean;
  readonly append?: AppendOut | null;
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
export interface EndEventOut {
  /** Of the choice. */
  readonly index: number;
  /** `stop`: a stop string; `length`: max_tokens. */
  readonly finish_reason: string;
  readonly usage: UsageOut;
  readonly seed: number;
  /** Of every log-probability, entropy and gain in the answer. */
  readonly unit: "nats" | "bits" | "log10";
  /** Of the session that keeps the text. */
  readonly version?: number | null;
  readonly position?: number | null;
  readonly durability?: string | null;
  readonly replayed?: boolean | null;
}

/** Why the connection is closed now, with a code of 4000 plus the status. */
export interface ErrorFrameOut {
  readonly type: "error";
  /** Of the frame that it is about; null for what is no frame. */
  readonly seq: number | null;
  readonly problem: ProblemOut;
}

/** A copy of a session; what is left out is the source's, but for the name. */
export interface ForkIn {
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
export interface FrameIn {
  /** One more than the frame before. */
  readonly seq: number;
  /** Text. Give this or `tokens`. */
  readonly text?: string | null;
  /** Ids of the model's vocabulary. Give this or `text`. */
  readonly tokens?: readonly number[] | null;
  /** Learn from it after scoring it. Default: true. */
  readonly learn?: boolean;
  /** The text ends here: score the word in progress too. Default: false. */
  readonly final?: boolean;
}

/** What the server sends. */
export type FrameOut = ReadyFrameOut | ScoresFrameOut | ErrorFrameOut;

/** A prompt and how to continue it. An empty prompt is the beginning of a text. */
export interface GenerateIn {
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

/** One text, or its ids. */
export interface ItemIn {
  /** Comes back with the scores; default: its index. */
  readonly id?: string | null;
  /** Text. Give this or `tokens`. */
  readonly text?: string | null;
  /** Ids of the model's vocabulary. Give this or `text`. */
  readonly tokens?: readonly number[] | null;
  /** Read before the text and scored against; not reported. Default: "". */
  readonly context?: string;
  /** The same as ids; not together with `context`. Default: []. */
  readonly context_tokens?: readonly number[];
}

/** One item's scores. */
export interface ItemOut {
  readonly ids?: readonly number[] | null;
  readonly logprobs?: readonly number[] | null;
  /** Under the weights as loaded. */
  readonly static_logprobs?: readonly number[] | null;
  /** 1 is the most probable token. */
  readonly ranks?: readonly number[] | null;
  /** Of the whole distribution at the token. */
  readonly entropies?: readonly number[] | null;
  /** First code point of the token's span. */
  readonly starts?: readonly number[] | null;
  /** Code point after the span. */
  readonly ends?: readonly number[] | null;
  readonly top?: TopOut | null;
  readonly id: string;
  /** What token 0 was scored against. */
  readonly first_token: "bos" | "context" | "session";
  /** Of each token that is not valid UTF-8 by itself; absent where all are. */
  readonly bytes?: readonly (readonly number[] | null)[] | null;
  readonly words?: readonly WordOut[] | null;
  readonly totals: TotalsOut;
  /** Segments learned from inside the item. */
  readonly updates: number;
  /** What kept learning in bounds, and how often: `step_skipped`, `projected`, `restarted` (once a row); `reset`, `frozen` (once a segment). */
  readonly guards: { readonly [name: string]: number };
}

export type JsonValue = unknown;

/** An error (RFC 9457). The last part of `type` names it for programs. */
export interface ProblemOut {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  /** Whether the change took effect. Of a request with a key it is `no` only where no earlier one with that key can have done it; where it is `unknown`, a repeat with the same key tells. */
  readonly applied: "no" | "yes" | "unknown";
  readonly request_id: string;
}

/** One candidate's sums. */
export interface RankedOut {
  readonly id: string;
  readonly logprob: number;
  /** Under the weights as loaded; null without a static row. */
  readonly static_logprob: number | null;
  /** logprob - static_logprob: what learning saves. */
  readonly gain: number | null;
  readonly tokens: number;
  readonly score: number;
  /** The same mix with static_logprob. */
  readonly static_score: number | null;
  /** 1 is the highest score. */
  readonly rank: number;
  /** 1 is the highest static_score. */
  readonly static_rank: number | null;
}

/** The first frame: the stream is open. */
export interface ReadyFrameOut {
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
export interface ResetIn {
  /** Default: "both". */
  readonly what?: "fast_weights" | "recurrent" | "both";
}

/** Where to go back to. */
export interface RestoreIn {
  /** The name of a snapshot of this session. */
  readonly snapshot: string;
}

/** Up to 256 items; or, in short, the fields of one item in their place. */
export interface ScoreIn {
  /** The texts to score. */
  readonly items?: readonly ItemIn[] | null;
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
  readonly adaptation?: AdaptationIn | null;
}

/** The items in the order they were given. */
export interface ScoreOut {
  readonly model: string;
  /** SHA-256 of weights and vocabulary. */
  readonly fingerprint: string;
  /** SHA-256 of the calibration. */
  readonly adaptation_fingerprint: string | null;
  /** Equal ids give equal bits. */
  readonly numerics: string;
  /** Of every log-probability, entropy and gain in the answer. */
  readonly unit: "nats" | "bits" | "log10";
  /** How the items were learned from; absent where they were not. */
  readonly adaptation?: AdaptationOut | null;
  readonly items: readonly ItemOut[];
}

/** A frame is acknowledged: it was appended, and this is what that did. */
export interface ScoresFrameOut {
  readonly ids?: readonly number[] | null;
  readonly logprobs?: readonly number[] | null;
  /** Under the weights as loaded. */
  readonly static_logprobs?: readonly number[] | null;
  /** 1 is the most probable token. */
  readonly ranks?: readonly number[] | null;
  /** Of the whole distribution at the token. */
  readonly entropies?: readonly number[] | null;
  /** First code point of the token's span. */
  readonly starts?: readonly number[] | null;
  /** Code point after the span. */
  readonly ends?: readonly number[] | null;
  readonly top?: TopOut | null;
  readonly version: number;
  readonly position: number;
  /** What the change survives: fsync, replica or memory. */
  readonly durability: string;
  /** The key was seen before: this is what happened then. */
  readonly replayed: boolean;
  /** Of every log-probability, entropy and gain in the answer. */
  readonly unit: "nats" | "bits" | "log10";
  /** Whether it could be learned from: asked for, and the session's is on. */
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
  readonly totals?: TotalsOut | null;
  readonly expires_at: number | null;
  readonly type: "scores";
  /** Of the frame. */
  readonly seq: number;
}

/** A session as the store has it. Times are seconds since 1970. */
export interface SessionOut {
  readonly id: string;
  readonly name: string | null;
  /** As it was called where the session was last changed; null, as are the fingerprints, for a session of an older server. */
  readonly model: string | null;
  /** Of the model's weights and vocabulary. */
  readonly fingerprint: string | null;
  /** Of its calibration. */
  readonly adaptation_fingerprint: string | null;
  readonly version: number;
  /** Tokens read. */
  readonly position: number;
  /** Characters held back until the word is complete; at most 4,096. */
  readonly pending: number;
  readonly created_at: number;
  readonly expires_at: number | null;
  readonly state_bytes: number;
  readonly adaptation: AdaptationOut;
  /** How much each expert counts in the next prediction; they sum to 1. */
  readonly weights: readonly number[];
  /** Norm of the fast weights over that of the loaded ones: the greatest expert's. */
  readonly norm_ratio: number;
  readonly totals: SessionTotalsOut;
  readonly metadata: { readonly [name: string]: JsonValue };
  /** Whether appends may learn. */
  readonly learning: boolean;
  /** Of a fork or an import: where its history began. */
  readonly forked_from: AncestorOut | null;
  /** Other numerics had a part in it: the same to 1e-4 nats a token, not to the bit. */
  readonly approx: boolean;
}

/** Sums over the session's life, in bits. */
export interface SessionTotalsOut {
  readonly tokens: number;
  readonly bytes: number;
  /** Under the weights as loaded; null without a static row. */
  readonly static_bits: number | null;
  /** Under the session's own weights. */
  readonly adapted_bits: number;
  /** static_bits - adapted_bits: what learning saved. */
  readonly gain: number | null;
  /** Segments learned from. */
  readonly updates: number;
  /** Times that a guard acted. */
  readonly guards: number;
}

/** A page of your sessions, oldest first. */
export interface SessionsOut {
  readonly sessions: readonly SessionOut[];
  /** Fetches the next page; null at the end. */
  readonly cursor: string | null;
}

/** The name for the present version. */
export interface SnapshotIn {
  /** Unique in the session. */
  readonly name: string;
}

/** A named snapshot, and where the session stood when it was taken. Times are seconds since 1970. */
export interface SnapshotOut {
  readonly name: string;
  readonly version: number;
  readonly position: number;
  readonly created_at: number;
  readonly state_bytes: number;
  readonly totals: SessionTotalsOut;
}

/** A session's named snapshots, oldest version first. */
export interface SnapshotsOut {
  readonly snapshots: readonly SnapshotOut[];
}

/** A version that has a name now. */
export interface TakenOut {
  readonly name: string;
  readonly version: number;
  readonly position: number;
  readonly created_at: number;
  readonly state_bytes: number;
  readonly totals: SessionTotalsOut;
  readonly durability: string;
  /** It had the name before. */
  readonly replayed: boolean;
}

/** The next token of a choice, and the text that it completes: none in the middle of a character. */
export interface TokenEventOut {
  /** Of the choice. */
  readonly index: number;
  /** How many tokens of the choice came before. */
  readonly step: number;
  readonly id: number;
  readonly text: string;
  /** Of the raw distribution; absent if not asked for. */
  readonly logprob?: number | null;
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

/** The most probable alternatives at each token, best first. */
export interface TopOut {
  readonly ids: readonly (readonly number[])[];
  readonly logprobs: readonly (readonly number[])[];
}

/** Sums over the tokens of an answer. */
export interface TotalsOut {
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
  readonly bits_per_byte: number | null;
  readonly static_bits_per_byte: number | null;
  /** logprob - static_logprob: what learning saved. */
  readonly gain: number | null;
}

/** What to change; what is left out stays as it is. At least one field must be there. */
export interface UpdateIn {
  /** From now on it expires this long after its last change. */
  readonly ttl_seconds?: number | null;
  /** Your own notes, in place of the old ones. */
  readonly metadata?: { readonly [name: string]: string | number | boolean | null } | null;
  /** Whether appends may learn; off, they only read, whatever they ask for. */
  readonly learning?: boolean | null;
}

/** Tokens read and made. */
export interface UsageOut {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
}

/** score = lm * logprob + length * tokens + given * given, with logprob in the answer's unit. */
export interface WeightsIn {
  /** Default: 1.0. */
  readonly lm?: number;
  /** Default: 0.0. */
  readonly length?: number;
  /** Default: 0.0. */
  readonly given?: number;
}

/** One word's sum. The white space before a word belongs to it; trailing white space is an entry. */
export interface WordOut {
  readonly start: number;
  readonly end: number;
  /** How many of them start in the word. */
  readonly tokens: number;
  readonly logprob: number;
  readonly static_logprob?: number | null;
}

/** One continuation. */
export interface ChoiceOut {
  readonly index: number;
  readonly text: string;
  readonly ids: readonly number[];
  readonly logprobs: readonly number[] | null;
  readonly finish_reason: string;
}

/** What each operation takes and answers. */
export interface Operations {
  /** Score texts. Log-probabilities are of the raw distribution: finite, at most 0, at least -9999 nats. */
  "POST /score": {
    parameters: object;
    headers: never;
    body: ScoreIn;
    answer: ScoreOut;
    event: never;
  };
  /** Continue a prompt. The same seed gives the same text, whatever else the server does. */
  "POST /generate": {
    parameters: object;
    headers: never;
    body: GenerateIn;
    answer: ContinuationOut;
    event: ({ readonly event: "token" } & TokenEventOut) | ({ readonly event: "end" } & EndEventOut) | ({ readonly event: "error" } & ProblemOut);
  };
  /** Make a session; a first text is appended at once. */
  "POST /sessions": {
    parameters: object;
    headers: "idempotency-key";
    body: CreateIn;
    answer: CreatedOut;
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
    answer: SessionsOut;
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
    answer: SessionOut;
    event: never;
  };
  /** Change the time to live, the metadata, or whether appends may learn. */
  "PATCH /sessions/{session_id}": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key" | "if-match";
    body: UpdateIn;
    answer: ChangedOut;
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
  /** Score this text with the weights as they are, then learn from it. */
  "POST /sessions/{session_id}/append": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key" | "if-match";
    body: AppendIn;
    answer: AppendOut;
    event: never;
  };
  /** Rank continuations against the session as it is; nothing changes. */
  "POST /sessions/{session_id}/score": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: never;
    body: CandidatesIn;
    answer: CandidatesOut;
    event: never;
  };
  /** Continue the session's text with its own weights; keep it in the session where asked. */
  "POST /sessions/{session_id}/generate": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key" | "if-match" | "last-event-id";
    body: ContinueIn;
    answer: ContinuationOut;
    event: ({ readonly event: "token" } & TokenEventOut) | ({ readonly event: "end" } & EndEventOut) | ({ readonly event: "error" } & ProblemOut);
  };
  /** Forget the fast weights, the recurrent state, or both. */
  "POST /sessions/{session_id}/reset": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key" | "if-match";
    body: ResetIn;
    answer: ChangedOut;
    event: never;
  };
  /** Give the present version a name to go back to. No version is made. */
  "POST /sessions/{session_id}/snapshots": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key" | "if-match";
    body: SnapshotIn;
    answer: TakenOut;
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
    answer: SnapshotsOut;
    event: never;
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
  /** Go back to a named snapshot: state, position and totals are as they were then, the version is new. */
  "POST /sessions/{session_id}/restore": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key" | "if-match";
    body: RestoreIn;
    answer: ChangedOut;
    event: never;
  };
  /** Make an independent copy of a session, as it is or as it was at a named snapshot. */
  "POST /sessions/{session_id}/fork": {
    parameters: {
      /** The id that the server gave the session. */
      readonly session_id: string;
    };
    headers: "idempotency-key";
    body: ForkIn;
    answer: CreatedOut;
    event: never;
  };
  /** Give the session as a signed file, which this server's tenant can import again. */
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
    answer: CreatedOut;
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
  "GET /sessions/{session_id}": { query: ["min_version"], headers: [], body: "none", answer: "json" },
  "PATCH /sessions/{session_id}": { query: [], headers: ["idempotency-key", "if-match"], body: "json", answer: "json" },
  "DELETE /sessions/{session_id}": { query: [], headers: [], body: "none", answer: "none" },
  "POST /sessions/{session_id}/append": { query: [], headers: ["idempotency-key", "if-match"], body: "json", answer: "json" },
  "POST /sessions/{session_id}/score": { query: [], headers: [], body: "json", answer: "json" },
  "POST /sessions/{session_id}/generate": { query: [], headers: ["idempotency-key", "if-match", "last-event-id"], body: "json", answer: "json" },
  "POST /sessions/{session_id}/reset": { query: [], headers: ["idempotency-key", "if-match"], body: "json", answer: "json" },
  "POST /sessions/{session_id}/snapshots": { query: [], headers: ["idempotency-key", "if-match"], body: "json", answer: "json" },
  "GET /sessions/{session_id}/snapshots": { query: ["min_version"], headers: [], body: "none", answer: "json" },
  "DELETE /sessions/{session_id}/snapshots/{snapshot}": { query: [], headers: [], body: "none", answer: "none" },
  "POST /sessions/{session_id}/restore": { query: [], headers: ["idempotency-key", "if-match"], body: "json", answer: "json" },
  "POST /sessions/{session_id}/fork": { query: [], headers: ["idempotency-key"], body: "json", answer: "json" },
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
