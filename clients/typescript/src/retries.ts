/**
 * When to send a call again, and after how long. Pure arithmetic: no clock, no sleep, no random source.
 *
 * A call may be repeated when the server cannot take it twice: it reads, or it carries an idempotency key, and
 * the repetition has the same key and the same body. A stream is repeated before its first event; afterwards it
 * goes on where the server keeps its text.
 */

import type { Call } from "./call.js";
import { keyed } from "./call.js";
import type { RLSTMError } from "./errors.js";
import {
  DrainingError,
  GatewayError,
  InFlightError,
  NoAnswerError,
  OutcomeUnknownError,
  OverloadedError,
  SlowConsumerError,
  StoreUnavailableError,
  TimedOutError,
} from "./errors.js";

/** How often and how long; `{ attempts: 1 }` sends everything once. */
export interface Retries {
  /** How often a call is sent at most. */
  readonly attempts: number;
  /** Seconds before the second attempt, doubled for each further one. */
  readonly firstWait: number;
  /** A server that asks for more seconds is not waited for; its error is thrown. */
  readonly longestWait: number;
}

export const DEFAULT_RETRIES: Retries = { attempts: 5, firstWait: 0.25, longestWait: 30 };

const WAIT_WHEN_TOLD: readonly (number | null)[] = [409, 429, 503];
const INTERRUPTIONS = [
  DrainingError,
  OverloadedError,
  StoreUnavailableError,
  SlowConsumerError,
  OutcomeUnknownError,
];

/**
 * The seconds to wait after a failed `attempt` (1 is the first), or null to give up.
 *
 * `chance` in [0, 1) spreads clients that failed together over the wait's upper half, and over half as much
 * again where the server named the time.
 */
export function waitFor(
  retries: Retries,
  call: Call<unknown>,
  error: RLSTMError,
  attempt: number,
  chance: number,
): number | null {
  if (attempt >= retries.attempts || !repeatable(call, error)) {
    return null;
  }
  const backoff = Math.min(retries.firstWait * 2 ** (attempt - 1), retries.longestWait);
  if (error.retryAfter === null) {
    return (backoff * (1 + chance)) / 2;
  }
  return error.retryAfter > retries.longestWait ? null : error.retryAfter + (backoff * chance) / 2;
}

/** Whether the same call may succeed later and cannot do harm. */
export function repeatable(call: Call<unknown>, error: RLSTMError): boolean {
  if (call.resumable && INTERRUPTIONS.some((kind) => error instanceof kind)) {
    return true;
  }
  if (error.applied === "yes") {
    return false;
  }
  if (error instanceof TimedOutError) {
    // Work without a key would be done from the start again: repeating it adds load and no chance.
    return keyed(call) || call.method !== "POST";
  }
  if ([NoAnswerError, InFlightError, OutcomeUnknownError, GatewayError].some((kind) => error instanceof kind)) {
    return true;
  }
  return WAIT_WHEN_TOLD.includes(error.status) && error.retryAfter !== null;
}

/**
 * Whether it is open, after this error too, if the call took effect; the error then says so.
 *
 * An attempt that reached nobody tells nothing of one before it; a server that answers has looked.
 */
export function stillOpen(error: RLSTMError, before: boolean): boolean {
  if (before && error instanceof NoAnswerError && error.applied === "no") {
    error.applied = "unknown";
  }
  return error.applied === "unknown";
}
