// What both clients compute, computed here too: the cases and their outcomes come from the Python client.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const from = (name) => import(`${process.env.CLIENT}/${name}.js`);
const errors = await from("errors");
const { ERROR_CLASSES, fromAnswer } = await from("problems");
const { DEFAULT_RETRIES, stillOpen, waitFor } = await from("retries");
const { FRAME_BYTES, Frames } = await from("frames");
const { AppendPlan, combine, cut, PieceBuffer } = await from("pieces");
const { EventDecoder } = await from("events");
const { sha256 } = await from("sha256");

const cases = JSON.parse(readFileSync(process.env.CASES, "utf8"));
const close = (ours, theirs) => Math.abs(ours - theirs) <= 1e-9 * Math.max(1, Math.abs(theirs));

test("the tree of errors is the same", () => {
  const tree = Object.values(errors)
    .map((one) => [one.name, Object.getPrototypeOf(one).name])
    .sort();
  assert.deepEqual(tree, cases.tree);
  const words = ERROR_CLASSES.map((one) => [one.name, one.type, one.status]).sort();
  assert.deepEqual(words, cases.words);
});

test("problem documents are read alike", () => {
  for (const { status, headers, text, error } of cases.problems) {
    const { constructor, message, applied, requestId, retryAfter, facts } = fromAnswer(status, new Headers(headers), text, "mine");
    assert.deepEqual({ name: constructor.name, detail: message, applied, requestId, retryAfter, facts }, error, text);
  }
});

test("the same failures are repeated, after the same time", () => {
  for (const { call, error, attempt, chance, wait } of cases.waits) {
    const failed = new errors[error.name]("failed", error);
    const ours = waitFor(DEFAULT_RETRIES, call, failed, attempt, chance);
    assert.ok(ours === wait || (ours !== null && wait !== null && close(ours, wait)), JSON.stringify({ call, error, attempt, ours, wait }));
  }
});

test("what an attempt leaves open stays open alike", () => {
  for (const { error, before, open, applied } of cases.doubts) {
    const failed = new errors[error.name]("failed", error);
    assert.deepEqual([stillOpen(failed, before), failed.applied], [open, applied], JSON.stringify({ error, before }));
  }
});

test("frames are the same", () => {
  for (const { texts, learn, final, frames } of cases.frames) {
    const [buffer, made] = [new PieceBuffer(1, final, FRAME_BYTES), new Frames("s", { learn: learn ?? undefined })];
    const sent = texts.flatMap((text) => buffer.feed(text)).map((piece) => made.make(piece, false));
    sent.push(...buffer.finish().map((piece) => made.make(piece, final)));
    assert.deepEqual(sent.map((frame) => JSON.parse(frame)), frames);
  }
});

test("texts are cut at the same places", () => {
  for (const { text, size, pieces } of cases.cuts) {
    assert.deepEqual(cut(text, size), pieces);
  }
});

test("streams of text are gathered into the same pieces", () => {
  for (const { texts, size, hold, pieces } of cases.gathered) {
    const buffer = new PieceBuffer(size, hold);
    const fed = texts.map((text) => buffer.feed(text));
    assert.deepEqual([...fed, buffer.finish()], pieces);
  }
});

test("a pair of surrogates that two texts share is one character", () => {
  const buffer = new PieceBuffer(1, false);
  assert.deepEqual(buffer.feed("a\ud83d"), ["a"]);
  assert.deepEqual(buffer.feed("\ude00b"), ["😀b"]);
});

test("answers of pieces are added up alike", () => {
  for (const { answers, whole } of cases.sums) {
    const ours = combine(answers);
    assert.deepEqual(Object.keys(ours).sort(), Object.keys(whole).sort());
    for (const [name, value] of Object.entries(ours.totals ?? {})) {
      const theirs = whole.totals[name] ?? null;
      assert.ok(value === theirs || close(value, theirs), `${name}: ${value} ${theirs}`);
    }
    assert.deepEqual({ ...ours, totals: 0 }, { ...whole, totals: 0 });
  }
});

test("where the scores of a piece are not stored there are none of the text", () => {
  const { answers } = cases.sums.find(({ answers }) => answers.length > 1 && answers[0].ids);
  const whole = combine([answers[0], { ...answers[1], ids: null, logprobs: null, scores_stored: false }]);
  assert.deepEqual([whole.scores_stored, whole.totals ?? null, whole.logprobs ?? null], [false, null, null]);
  assert.throws(() => combine([answers[0], { ...answers[1], logprobs: answers[1].logprobs.slice(1) }]), errors.UnreadableAnswerError);
});

test("a stream is decoded alike, wherever it is cut", () => {
  for (const { chunks, events } of cases.streams) {
    const decoder = new EventDecoder();
    assert.deepEqual(chunks.flatMap((chunk) => decoder.feed(Uint8Array.from(chunk))), events);
  }
});

test("digests are SHA-256", () => {
  for (const length of [...Array(200).keys(), 100_000]) {
    const data = Uint8Array.from({ length }, (_, index) => (index * index) % 251);
    assert.equal(sha256(data), createHash("sha256").update(data).digest("hex"), String(length));
  }
});

test("pieces have the same keys", () => {
  for (const { whole, options, keys } of cases.keys) {
    const plan = new AppendPlan("s", whole, { ...options, idempotency_key: "k-1", if_match: 3, signal: undefined });
    const made = [];
    for (let next = plan.next(); next !== undefined; next = plan.next()) {
      made.push(next.headers["idempotency-key"]);
      plan.add({ version: 4, replayed: true });
    }
    assert.deepEqual(made, keys);
  }
});

test("ids are cut by their number, under keys of their own", () => {
  const plan = new AppendPlan("s", Array.from({ length: 9_000 }, (_, id) => id % 256), { final: true, idempotency_key: "k", if_match: 7 });
  const [sent, keys] = [[], new Set()];
  for (let made = plan.next(); made !== undefined; made = plan.next()) {
    sent.push([JSON.parse(made.body).tokens.length, JSON.parse(made.body).final, made.headers["if-match"]]);
    keys.add(made.headers["idempotency-key"]);
    plan.add({ version: 8 + sent.length, replayed: true });
  }
  assert.deepEqual(sent, [[4_096, undefined, '"7"'], [4_096, undefined, '"9"'], [808, true, '"10"']]);
  assert.equal(keys.size, 3);
});
