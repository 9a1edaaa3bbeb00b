/** A session as it is read here: what the server says of it, what was read, and the text on its way. */

import { Outbox } from "./outbox.js";
import { ask } from "./server.js";
import { Transcript } from "./transcript.js";

export class Reading {
  isGone = false;

  /** `grown` hears of each answer, `changed` of each new state of the text on its way. */
  constructor(session, { coversAll, transcript = null, grown, changed }) {
    this.session = session;
    this.transcript = transcript ?? Transcript.of(session, { coversAll });
    this.outbox = new Outbox({
      send: (piece) => this.#append(piece),
      arrived: (piece, answer) => {
        this.#take(piece, answer);
        grown(this, piece, answer);
      },
      changed: () => changed(this),
    });
  }

  /** Take what the server says of the session now. */
  update(session) {
    this.transcript.meet(session.position);
    this.session = session;
  }

  #append({ text, learn, isFinal, operation }) {
    const body = { text, learn, final: isFinal, unit: "bits", scores: "parts" };
    return ask("POST", `sessions/${this.session.id}/append`, { body, operation });
  }

  #take(piece, answer) {
    this.transcript.add(piece.text, answer);
    const { totals } = this.session;
    const { logprob, static_logprob: fixed, weights_logprob: weights, memory_logprob: memory, tokens, bytes } = answer.totals;
    this.session = {
      ...this.session,
      version: answer.version,
      position: answer.position,
      weights: answer.weights,
      norm_ratio: answer.norm_ratio,
      expires_at: answer.expires_at,
      totals: {
        ...totals,
        tokens: totals.tokens + tokens,
        bytes: totals.bytes + bytes,
        adapted_bits: totals.adapted_bits - logprob,
        static_bits: fixed === null ? null : totals.static_bits - fixed,
        ...(memory === undefined ? {} : { weights_bits: totals.weights_bits - weights, memory_bits: totals.memory_bits - memory }),
        gain: fixed === null ? null : totals.gain + answer.totals.gain,
        updates: totals.updates + answer.updates,
      },
    };
  }
}
