// The client and a real server: every kind of call, and what the server refuses.

import assert from "node:assert/strict";
import { test } from "node:test";

const rlstm = await import(`${process.env.CLIENT}/index.js`);
const { Client } = rlstm;

const { URL: url, KEY: apiKey, ADMIN: admin, SLOW: slow } = process.env;
const client = new Client(url, { apiKey });
const TEXT = "It was the best of times, it was the worst of times. ";

const within = (value, other, tolerance) => assert.ok(Math.abs(value - other) <= tolerance, `${value} is not ${other}`);
const sum = (values) => values.reduce((total, value) => total + value, 0);

test("score: columns, totals and words", async () => {
  const answer = await client.score(TEXT, { unit: "bits", words: true, top: 2 });
  const [item] = answer.items;
  assert.equal(answer.unit, "bits");
  assert.equal(item.ids.length, TEXT.length);
  within(sum(item.logprobs), item.totals.logprob, 1e-6);
  within(-item.totals.logprob / item.totals.bytes, item.totals.bits_per_byte, 1e-9);
  assert.equal(item.words.length, TEXT.split(" ").length);
  assert.deepEqual(item.top.ids[0].length, 2);
});

test("score: several items, ids, and learning inside", async () => {
  const { items } = await client.score({ items: [{ id: "a", text: TEXT.repeat(20) }, { id: "b", tokens: [104, 105] }] }, { adapt: true });
  assert.deepEqual(items.map((item) => item.id), ["a", "b"]);
  assert.ok(items[0].updates > 0);
});

test("generate: the stream is the whole answer", async () => {
  const options = { max_tokens: 20, seed: 7, temperature: 0.5 };
  const whole = await client.generate("It was", options);
  const [texts, ends] = [[], []];
  for await (const event of await client.generate("It was", { ...options, stream: true })) {
    event.event === "token" ? texts.push(event.text) : ends.push(event);
  }
  assert.equal(texts.join(""), whole.text);
  assert.equal(texts.length, 20);
  assert.deepEqual(ends.map((end) => [end.finish_reason, end.seed, end.usage.completion_tokens]), [["length", 7, 20]]);
});

test("generate: several choices each have their end", async () => {
  const events = [];
  for await (const event of await client.generate("It was", { max_tokens: 3, n: 3, stream: true })) {
    events.push(event);
  }
  assert.equal(events.filter((event) => event.event === "end").length, 3);
  assert.equal(events.filter((event) => event.event === "token").length, 9);
});

test("a session reads, learns, ranks, and writes on", async () => {
  const session = await client.sessions.create({ name: "tale", metadata: { year: 1859 }, text: TEXT });
  assert.equal(session.created.append.totals.bytes, TEXT.length);
  const answer = await session.append(TEXT.repeat(4));
  assert.equal(answer.version, 2);
  assert.equal(answer.replayed, false);
  assert.ok(answer.updates > 0);
  within(answer.totals.gain, answer.totals.logprob - answer.totals.static_logprob, 1e-6);
  const { candidates } = await session.score(["It was", { id: "x", text: "zq", given: 2 }], { weights: { given: 1 } });
  assert.deepEqual(candidates.map((candidate) => candidate.id), ["0", "x"]);
  assert.deepEqual(candidates.map((candidate) => candidate.static_rank).sort(), [1, 2]);
  within(candidates[1].static_score, candidates[1].static_logprob + 2, 1e-6);
  const kept = await session.generate({ commit: true, max_tokens: 5 });
  assert.equal(kept.position, answer.position + 5);
  const info = await session.info({ min_version: kept.version });
  assert.deepEqual([info.name, info.metadata, info.position], ["tale", { year: 1859 }, kept.position]);
  await session.delete();
});

test("a kept text comes as a stream, and is the session's", async () => {
  const session = await client.sessions.create({ text: TEXT });
  const events = [];
  for await (const event of await session.generate({ commit: true, stream: true, max_tokens: 40 })) {
    events.push(event);
  }
  const end = events.at(-1);
  assert.deepEqual(events.slice(0, -1).map((event) => event.step), [...Array(40).keys()]);
  assert.equal((await session.info()).position, TEXT.length + 40);
  assert.equal(end.version, (await session.info()).version);
  await session.delete();
});

test("a long text travels in pieces and comes back as one", async () => {
  const text = "é🙂 ".repeat(600); // 4,200 bytes: a cut falls inside a character
  const session = await client.sessions.create();
  const answer = await session.append(text, { learn: false, if_match: 0, idempotency_key: "all-of-it" });
  assert.equal(answer.version, 2);
  assert.equal(answer.totals.bytes, 4_200);
  assert.equal(answer.ids.length, 4_200);
  assert.equal(new TextDecoder().decode(Uint8Array.from(answer.ids)), text);
  const again = await session.append(text, { learn: false, if_match: 0, idempotency_key: "all-of-it" });
  assert.equal(again.replayed, true);
  assert.equal((await session.info()).position, 4_200);
  await session.delete();
});

test("texts are appended as they come", async () => {
  async function* texts() {
    yield* ["It was ", "the best", " of times"];
  }
  const session = await client.sessions.create();
  const answers = [];
  for await (const answer of session.appendStream(texts(), { gatherBytes: 8, scores: "totals", final: true })) {
    answers.push(answer.totals.bytes);
  }
  assert.deepEqual(answers, [15, 9]);
  await session.delete();
});

test("snapshots, restore, fork, reset, settings", async () => {
  const session = await client.sessions.create({ text: TEXT });
  const taken = await session.snapshot("here");
  await session.append("Another text. ");
  assert.deepEqual((await session.snapshots()).map(({ name, version }) => [name, version]), [["here", taken.version]]);
  const twin = await session.fork({ snapshot: "here", name: "twin" });
  assert.equal(twin.created.forked_from.session, session.id);
  assert.equal(twin.created.position, TEXT.length);
  assert.equal((await session.restore("here")).position, TEXT.length);
  await session.dropSnapshot("here");
  await assert.rejects(session.restore("here"), rlstm.NotFoundError);
  assert.equal((await session.reset({ what: "fast_weights" })).norm_ratio, 0);
  assert.equal((await session.update({ learning: false, metadata: { a: null } })).learning, false);
  assert.equal((await session.append("It was ")).learn, false);
  await Promise.all([session.delete(), twin.delete()]);
});

test("a session travels as a file", async () => {
  const session = await client.sessions.create({ text: TEXT.repeat(3) });
  const file = await session.export();
  const probe = async (one) => (await one.score(["the best"])).candidates[0].logprob;
  const before = await probe(session);
  await session.delete();
  const copy = await client.sessions.importSession(file, { name: "copy" });
  assert.equal(await probe(copy), before);
  await assert.rejects(client.sessions.importSession(new Blob(["no such file"])), rlstm.ImportRejectedError);
  await copy.delete();
});

test("sessions are listed over pages", async () => {
  const made = await Promise.all(Array.from({ length: 5 }, () => client.sessions.create()));
  const page = await client.sessions.page({ limit: 2 });
  assert.equal(page.sessions.length, 2);
  assert.notEqual(page.cursor, null);
  const listed = new Set();
  for await (const { id } of client.sessions.list()) {
    listed.add(id);
  }
  assert.ok(made.every(({ id }) => listed.has(id)));
  await Promise.all(made.map((session) => session.delete()));
});

test("ids of a text, and back", async () => {
  const tokens = await client.tokenize("é🙂");
  assert.deepEqual(tokens, [...new TextEncoder().encode("é🙂")]);
  assert.equal(await client.detokenize(tokens), "é🙂");
  assert.equal((await client.tokenizerInfo()).vocab_size, 256);
  const session = await client.sessions.create({ tokens });
  assert.equal((await session.append(tokens)).position, 2 * tokens.length);
  await session.delete();
});

test("what the server is", async () => {
  assert.equal((await client.live()).status, "live");
  assert.equal((await client.ready()).status, "ready");
  assert.equal(typeof (await client.info()).limits, "object");
  assert.match(await new Client(url, { apiKey: admin }).metrics(), /^# HELP rlstm_/m);
});

const once = { retries: { attempts: 1 } };
const fails = (work, kind, status, more = {}) =>
  assert.rejects(work, (error) => {
    assert.ok(error instanceof kind, `${error.name} is no ${kind.name}: ${error.message}`);
    assert.equal(error.status, status);
    assert.equal(error.name, kind.name);
    assert.match(error.requestId, /^\S{8,}$/);
    for (const [name, value] of Object.entries(more)) {
      assert.deepEqual(error[name], value, name);
    }
    return true;
  });

test("400: ids outside the vocabulary", () => fails(client.score({ tokens: [256] }), rlstm.InvalidTokenError, 400));

test("401: no key, or a wrong one", async () => {
  await fails(new Client(url).info(), rlstm.UnauthorizedError, 401);
  await fails(new Client(url, { apiKey: "not the right one" }).info(), rlstm.UnauthorizedError, 401);
});

test("403: a key that may not", () => fails(new Client(url, { apiKey: slow }).metrics(), rlstm.ForbiddenError, 403));

test("404: a session that never was", () => fails(client.sessions.get("0".repeat(32)).info(), rlstm.NotFoundError, 404));

test("409: a name that is taken", async () => {
  const session = await client.sessions.create({ name: "taken" });
  await fails(client.sessions.create({ name: "taken" }), rlstm.SessionExistsError, 409);
  await session.delete();
});

test("410: a session that was deleted", async () => {
  const session = await client.sessions.create();
  await session.delete();
  await session.delete();
  await fails(session.append("a"), rlstm.SessionDeletedError, 410);
});

test("412: a session that has moved on", async () => {
  const session = await client.sessions.create({ text: TEXT });
  await fails(session.append("a", { if_match: 0 }), rlstm.VersionMismatchError, 412, { currentVersion: 1 });
  await fails(session.info({ min_version: 9 }), rlstm.VersionMismatchError, 412);
  assert.equal((await session.info()).version, 1);
  await session.delete();
});

test("413: over a limit", () =>
  fails(client.generate("a", { max_tokens: 65_536, n: 16 }), rlstm.TooLargeError, 413));

test("422: a field that is wrong, and a key with another body", async () => {
  await fails(client.score(""), rlstm.InvalidFieldError, 422);
  await fails(client.sessions.create({ metadata: { n: 2 ** 63 } }), rlstm.InvalidFieldError, 422);
  await fails(client.generate("a", { temperature: -1, stream: true }), rlstm.InvalidFieldError, 422);
  const session = await client.sessions.create();
  await session.append("a", { idempotency_key: "k" });
  await fails(session.append("b", { idempotency_key: "k" }), rlstm.IdempotencyMismatchError, 422);
  await session.delete();
});

test("429: a quota that is used up is waited for as long as the server says", async () => {
  await new Client(url, { apiKey: slow }).info();
  const waits = [];
  const patient = new Client(url, { apiKey: slow, chance: () => 0, sleep: async (seconds) => void waits.push(seconds) });
  await fails(patient.info(), rlstm.RateLimitedError, 429);
  assert.equal(waits.length, 4);
  assert.ok(waits.every((seconds) => seconds >= 10));
  await fails(new Client(url, { apiKey: slow, ...once }).info(), rlstm.RateLimitedError, 429);
});

test("503: what a busy server refuses comes through later", async () => {
  const text = TEXT.repeat(100);
  const hasty = new Client(url, { apiKey, ...once });
  const refused = (await Promise.allSettled(Array.from({ length: 24 }, () => hasty.score(text, { scores: "totals" })))).filter(({ status }) => status === "rejected");
  assert.ok(refused.length > 0);
  assert.ok(refused.every(({ reason }) => reason instanceof rlstm.OverloadedError && reason.status === 503 && reason.retryAfter > 0));
  const patient = new Client(url, { apiKey, retries: { attempts: 50 } });
  const done = await Promise.all(Array.from({ length: 12 }, () => patient.score(text, { scores: "totals" })));
  assert.equal(new Set(done.map(({ items }) => items[0].totals.logprob)).size, 1);
});

test("a call that is aborted rejects with the signal's reason", async () => {
  const session = await client.sessions.create();
  const reason = new Error("enough");
  const controller = new AbortController();
  setTimeout(() => controller.abort(reason), 100);
  await assert.rejects(session.append(TEXT.repeat(100), { learn: false, signal: controller.signal }), (error) => error === reason);
  await assert.rejects(session.info({ signal: AbortSignal.abort(reason) }), (error) => error === reason);
  assert.ok((await session.info()).version < 2, "the rest was sent although nobody wanted it");
  await session.delete();
});

test("a stream that is left ends at the server", async () => {
  const session = await client.sessions.create({ text: TEXT });
  for await (const { event } of await session.generate({ max_tokens: 8_000, commit: true, stream: true })) {
    assert.equal(event, "token");
    break;
  }
  let position;
  do {
    position = (await session.info()).position;
    await new Promise((resolve) => setTimeout(resolve, 300));
  } while ((await session.info()).position !== position);
  assert.ok(position < 4_000);
  await session.delete();
});

test("a stream ends with the signal, and when it is closed", async () => {
  const controller = new AbortController();
  const options = { max_tokens: 60_000, stream: true };
  const aborted = await client.generate("a", { ...options, signal: controller.signal });
  controller.abort(new Error("enough"));
  await assert.rejects(async () => { for await (const _ of aborted); }, /enough/);
  const closed = await client.generate("a", options);
  await closed.next();
  await closed.close();
  assert.deepEqual(await closed.next(), { done: true, value: undefined });
});
