/** The figures of a session: what a byte costs with and without learning, and what that saved in all. */

import { byId } from "./element.js";
import { bits, bytes, called, fixed, whole } from "./words.js";

/** Show the figures of a session; null shows none. */
export function showFigures(session) {
  const { bytes: size = 0, adapted_bits: adapted = null, static_bits: static_ = null, gain = null } = session?.totals ?? {};
  byId("figure-adapted").textContent = size > 0 ? fixed(adapted / size) : "–";
  byId("figure-static").textContent = size > 0 && static_ !== null ? fixed(static_ / size) : "–";
  byId("figure-saved").textContent = size > 0 && gain !== null ? bits(gain) : "–";
  byId("figure-share").textContent = size > 0 && gain !== null ? `${fixed((100 * gain) / static_, 1)} % less` : "by learning";
  byId("session-facts").textContent = session === null ? "" : factsOf(session).join(" · ");
  byId("reader-title").textContent = session === null ? "No session is open" : called(session);
  document.title = session === null ? "rlstm" : `${called(session)} · rlstm`;
}

/** One sentence for those who hear it. */
export function heard({ totals }) {
  if (totals.bytes === 0) return "Nothing read yet.";
  const static_ = totals.static_bits === null ? "" : `, ${fixed(totals.static_bits / totals.bytes)} static, ${bits(totals.gain)} saved`;
  return `${bytes(totals.bytes)} read: ${fixed(totals.adapted_bits / totals.bytes)} bits per byte adapted${static_}.`;
}

function factsOf({ id, version, position, adaptation, state_bytes: state, expires_at: expires, learning }) {
  return [
    `${whole(position)} tokens, version ${whole(version)}`,
    `${adaptation.experts} expert${adaptation.experts === 1 ? "" : "s"}${adaptation.adapt === "memory" ? "" : `, ${adaptation.kind.replace("_", " ")} of ${whole(adaptation.num_fast_weights)}`}${adaptation.adapt === "weights" ? "" : ", a memory"}`,
    `${bytes(state)} of state`,
    ...(learning ? [] : ["learning is off"]),
    ...(expires === null ? [] : [`expires ${new Date(expires * 1000).toLocaleDateString("en", { dateStyle: "medium" })}`]),
    `id ${id}`,
  ];
}
