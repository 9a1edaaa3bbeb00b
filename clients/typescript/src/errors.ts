/**
 * Every error this client throws, drawn as one tree. The lowest words are the `type` of the server's problem
 * documents (RFC 9457); `problems.ts` reads them. The Python client has the same tree.
 *
 *     RLSTMError
 *     ├── RequestError                    the request cannot be built; nothing was sent
 *     ├── NoAnswerError                   no whole answer arrived
 *     │   ├── CannotConnectError              nothing was sent either
 *     │   ├── TimedOutError
 *     │   ├── ConnectionLostError
 *     │   └── StreamInterruptedError          a stream broke off before its end event
 *     ├── UnreadableAnswerError           an answer that this client does not understand
 *     ├── ScoresNotStoredError            done before, and what it found is not known any more
 *     └── APIError                        the server said no: a class for each status, and below it for each word
 */

import type { AppendAnswer } from "./schema.js";

/** Whether the change that was asked for took effect. */
export type Applied = "no" | "yes" | "unknown";

/** How far a text had come when appending it ended before its end. */
export interface AppendProgress {
  /** The pieces that were acknowledged, as one answer; null when there is none, and of a stream, whose were handed out. */
  readonly answer: AppendAnswer | null;
  /** What of the text they hold, in UTF-16 code units: `text.slice(length)` is what is left. Of ids: how many. */
  readonly length: number;
  /** What was on its way next and may be in the session too; null when nothing was. */
  readonly piece: string | readonly number[] | null;
  /** Its idempotency key: appended again with this key and the same options it is there once. */
  readonly key: string | null;
  /** What of `stream` was on its way behind it, in this order, with keys of the same use. */
  readonly following: readonly { readonly piece: string; readonly key: string }[];
}

/** What is known of an error beside its sentence. */
export interface ErrorDetails {
  readonly applied?: Applied;
  readonly status?: number | null;
  readonly requestId?: string | null;
  readonly retryAfter?: number | null;
  readonly facts?: Readonly<Record<string, unknown>>;
  readonly cause?: unknown;
}

/** The root of the tree. */
export class RLSTMError extends Error {
  /** Whether the change that was asked for took effect; open where an attempt before left it open. */
  applied: Applied;
  /** The HTTP status; null when there was no answer. */
  readonly status: number | null;
  /** What the server's log calls this request. */
  readonly requestId: string | null;
  /** Seconds, where the server named them. */
  readonly retryAfter: number | null;
  /** Further members of the server's answer, for example `field`, `limit` or `version`. */
  readonly facts: Readonly<Record<string, unknown>>;
  /**
   * Set by `append`, `appendStream` and `stream`, since a part of the text may be in the session already; an
   * error of another kind that ends them has it too.
   */
  progress: AppendProgress | null = null;

  constructor(detail: string, details: ErrorDetails = {}) {
    super(detail, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.applied = details.applied ?? "no";
    this.status = details.status ?? null;
    this.requestId = details.requestId ?? null;
    this.retryAfter = details.retryAfter ?? null;
    this.facts = details.facts ?? {};
  }
}

/** The request cannot be built: text that is not text, NaN, an impossible session id or address. */
export class RequestError extends RLSTMError {}

/** No whole answer arrived. */
export class NoAnswerError extends RLSTMError {}
/** No server answers at this address; nothing was sent. Browsers do not tell this from a lost connection. */
export class CannotConnectError extends NoAnswerError {}
/** The answer did not come in time; the server may still be at work. */
export class TimedOutError extends NoAnswerError {}
/** The connection broke after the request was on its way. */
export class ConnectionLostError extends NoAnswerError {}
/** A stream of events broke off before its end event: what came before is not the whole. */
export class StreamInterruptedError extends NoAnswerError {}

/** The answer is not of the expected form: another server, or a proxy's page. */
export class UnreadableAnswerError extends RLSTMError {}

/**
 * The change took effect once, at an earlier request; its scores are no longer stored. `facts` has the session's
 * `version` and `position` after it.
 */
export class ScoresNotStoredError extends RLSTMError {}

/** The server refused or failed; `type` is its word for the reason, the same on every release. */
export class APIError extends RLSTMError {
  static readonly type: string = "";
  static readonly status: number | null = null;
}

/** The body is not what it has to be. */
export class BadRequestError extends APIError {
  static override readonly status: number = 400;
}
/** The body is not strict JSON. */
export class InvalidJSONError extends BadRequestError {
  static override readonly type = "invalid_json";
}
/** The text is no text: it holds a lone surrogate. */
export class InvalidTextError extends BadRequestError {
  static override readonly type = "invalid_text";
}
/** An id lies outside the vocabulary. */
export class InvalidTokenError extends BadRequestError {
  static override readonly type = "invalid_token";
}

/** There is no key, or a wrong one. */
export class UnauthorizedError extends APIError {
  static override readonly status = 401;
  static override readonly type = "unauthorized";
}

/** The key is known but may not do this. */
export class ForbiddenError extends APIError {
  static override readonly status = 403;
  static override readonly type = "forbidden";
}

/** There is no such session or route, or the session is another tenant's. */
export class NotFoundError extends APIError {
  static override readonly status = 404;
  static override readonly type: string = "not_found";
}

/** No model of this name is served; the sentence names those that are. */
export class ModelNotFoundError extends NotFoundError {
  static override readonly type = "model_not_found";
}

/** The route does not know this method. */
export class MethodNotAllowedError extends APIError {
  static override readonly status = 405;
  static override readonly type = "method_not_allowed";
}

/** The server waited for this side, and gave up. */
export class RequestTimeoutError extends APIError {
  static override readonly status = 408;
}
/** The body took too long to arrive at the server. */
export class ReceiveTimeoutError extends RequestTimeoutError {
  static override readonly type = "receive_timeout";
}
/** The events of a stream were not read as fast as they have to be. */
export class SlowConsumerError extends RequestTimeoutError {
  static override readonly type = "slow_consumer";
}

/** The request does not fit what the server holds. */
export class StateConflictError extends APIError {
  static override readonly status = 409;
}
/** Other replicas changed the session each time the server tried; nothing was applied. */
export class ConflictError extends StateConflictError {
  static override readonly type = "conflict";
}
/** An operation with the same idempotency key is still at work. */
export class InFlightError extends StateConflictError {
  static override readonly type = "in_flight";
}
/** The session belongs to another model or calibration. */
export class ModelMismatchError extends StateConflictError {
  static override readonly type = "model_mismatch";
}
/** Another live session has this name. */
export class SessionExistsError extends StateConflictError {
  static override readonly type = "session_exists";
}
/** The session has a snapshot of this name, of another version. */
export class SnapshotExistsError extends StateConflictError {
  static override readonly type = "snapshot_exists";
}

/** The session was there, but is no more. */
export class GoneError extends APIError {
  static override readonly status = 410;
}
/** The session was deleted. */
export class SessionDeletedError extends GoneError {
  static override readonly type = "session_deleted";
}
/** The session's time to live ran out. */
export class SessionExpiredError extends GoneError {
  static override readonly type = "session_expired";
}

/** The session has moved on; `currentVersion` says to where. */
export class VersionMismatchError extends APIError {
  static override readonly status = 412;
  static override readonly type = "version_mismatch";

  /** The session's version as the server sees it. */
  get currentVersion(): number | null {
    const version = this.facts["version"];
    return typeof version === "number" ? version : null;
  }
}

/** Over a limit; the message names both numbers. */
export class TooLargeError extends APIError {
  static override readonly status = 413;
  static override readonly type = "too_large";
}

/** The body has a content type that the route does not read. */
export class UnsupportedMediaTypeError extends APIError {
  static override readonly status = 415;
  static override readonly type = "unsupported_media_type";
}

/** The request is well formed but cannot be done. */
export class UnprocessableError extends APIError {
  static override readonly status = 422;
}
/** The idempotency key was used with another body before. */
export class IdempotencyMismatchError extends UnprocessableError {
  static override readonly type = "idempotency_mismatch";
}
/** The file is not a whole export of yours, or it is of another model. */
export class ImportRejectedError extends UnprocessableError {
  static override readonly type = "import_rejected";
}
/** A field is wrong, unknown, missing or empty; the message names it. */
export class InvalidFieldError extends UnprocessableError {
  static override readonly type = "invalid_field";
}

/** The WebSocket arrived as a plain request: a proxy in between does not pass it on. */
export class UpgradeRequiredError extends APIError {
  static override readonly status = 426;
  static override readonly type = "upgrade_required";
}

/** Your own quota is used up; `retryAfter` says for how long. */
export class RateLimitedError extends APIError {
  static override readonly status = 429;
  static override readonly type = "rate_limited";
}

/** The server's own fault; its log has the request id. */
export class ServerFaultError extends APIError {
  static override readonly status = 500;
}
/** An unexpected fault failed this request. */
export class InternalError extends ServerFaultError {
  static override readonly type = "internal_error";
}
/** The stored state of the session is damaged; nothing was applied. */
export class StateCorruptError extends ServerFaultError {
  static override readonly type = "state_corrupt";
}

/** A proxy in between could not reach the server. */
export class GatewayError extends APIError {
  static override readonly status = 502;
}

/** The server cannot take this now. */
export class UnavailableError extends APIError {
  static override readonly status = 503;
}
/** The server is shutting down. */
export class DrainingError extends UnavailableError {
  static override readonly type = "draining";
}
/** The change is committed, but not as durably as the server is set to promise. */
export class DurabilityNotReachedError extends UnavailableError {
  static override readonly type = "durability_not_reached";
}
/** A queue is full. */
export class OverloadedError extends UnavailableError {
  static override readonly type = "overloaded";
}
/** The store has no room for new sessions. */
export class StoreFullError extends UnavailableError {
  static override readonly type = "store_full";
}
/** The store does not answer. */
export class StoreUnavailableError extends UnavailableError {
  static override readonly type = "store_unavailable";
}

/** The change may have happened; the same call with the same key tells. */
export class OutcomeUnknownError extends APIError {
  static override readonly status = 504;
  static override readonly type = "outcome_unknown";
}
