// Every operation of the server's document is reached by a method, with what the document says it takes.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const { Client, RequestError, ScoresNotStoredError, UnreadableAnswerError } = await import(`${process.env.CLIENT}/index.js`);
const { paths } = JSON.parse(readFileSync(process.env.DOCUMENT, "utf8"));
const OPERATIONS = Object.fromEntries(
  Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => [`${method.toUpperCase()} ${path}`, operation]),
  ),
);
const named = ({ parameters = [] }, place) => parameters.filter((one) => one.in === place).map(({ name }) => name);

const ID = "a".repeat(32);
const FILE = new Blob(["file"]);

/** A client whose requests are answered with little, and the requests. */
function recorded(answer = {}) {
  const requests = [];
  const fetch = async (url, init) => {
    const { pathname, searchParams } = new URL(url);
    requests.push({ ...init, path: pathname, query: Object.fromEntries(searchParams) });
    if (pathname.endsWith("/export")) {
      return new Response("file", { headers: { "content-type": "application/octet-stream" } });
    }
    if (pathname === "/metrics") {
      return new Response("up 1");
    }
    return Response.json({ id: ID, sessions: [], cursor: null, snapshots: [], totals: { tokens: 0 }, ...answer });
  };
  return { client: new Client("http://server", { fetch, WebSocket: Refused }), requests };
}

/** A WebSocket that no server opens: the client then asks by a plain request why. */
class Refused {
  constructor() {
    setTimeout(() => this.onerror({}));
  }

  close() {}
}

function operationOf({ method, path }) {
  const fits = (name) => {
    const [verb, template] = name.split(" ");
    return verb === method && new RegExp(`^${template.replace(/\{\w+\}/g, "[^/]+")}$`).test(path);
  };
  // A path that is spelt out goes before one that also fits a template.
  return Object.keys(OPERATIONS).filter(fits).sort((a, b) => a.includes("{") - b.includes("{"))[0];
}

async function callEverything(client) {
  await client.score("a");
  await client.generate("a");
  await client.tokenize("a");
  await client.detokenize([97]);
  await client.tokenizerInfo({ model: "m" });
  await client.info();
  await client.live();
  await client.ready();
  await client.metrics();
  await client.sessions.create();
  await client.sessions.importSession(FILE, { name: "n", ttl_seconds: 9, idempotency_key: "k" });
  await client.sessions.page({ limit: 3, cursor: "c", name: "n" });
  const session = client.sessions.get(ID);
  await session.info({ min_version: 1 });
  await session.note({ min_version: 1 });
  await session.update({ learning: false, if_match: 4 });
  await session.append("a", { if_match: 4 });
  await session.score(["a", { text: "b", given: 1 }]);
  await session.generate({ commit: true, if_match: 4 });
  await session.stream(["a"], { scores: "none", unit: "bits" }).next().catch(() => {});
  await session.reset({ if_match: 4 });
  await session.snapshot("n", { if_match: 4 });
  await session.snapshots({ min_version: 1 });
  await session.dropSnapshot("n");
  await session.restore("n", { if_match: 4 });
  await session.fork({ snapshot: "n" });
  await session.export({ min_version: 1 });
  await session.delete();
}

test("every operation has a method", async () => {
  const { client, requests } = recorded();
  await callEverything(client);
  assert.deepEqual(new Set(requests.map(operationOf)), new Set(Object.keys(OPERATIONS)));
});

test("every query and every header goes where the document has it", async () => {
  const { client, requests } = recorded();
  await callEverything(client);
  for (const request of requests) {
    const row = OPERATIONS[operationOf(request)];
    assert.deepEqual(Object.keys(request.query).sort(), named(row, "query").sort());
    assert.equal(request.body === null || request.body === undefined, row.requestBody === undefined);
    const sent = ["idempotency-key", "if-match"].filter((name) => name in request.headers);
    assert.deepEqual(sent, ["idempotency-key", "if-match"].filter((name) => named(row, "header").includes(name)));
    assert.match(request.headers["x-request-id"], /^[0-9a-f]{32}$/);
  }
});

test("what is given goes into the body and nothing else does", async () => {
  const { client, requests } = recorded();
  const { signal } = new AbortController();
  await client.sessions.get(ID).fork({ snapshot: "n", metadata: { a: 1 }, min_version: undefined, signal });
  assert.deepEqual(JSON.parse(requests[0].body), { snapshot: "n", metadata: { a: 1 } });
  assert.equal(requests[0].headers["content-type"], "application/json");
});

test("only generation that is kept has a key", async () => {
  const { client, requests } = recorded();
  await client.sessions.get(ID).generate({ max_tokens: 1 });
  assert.ok(!("idempotency-key" in requests[0].headers));
});

test("what is of a kept text only is not dropped", async () => {
  const { client, requests } = recorded();
  const session = client.sessions.get(ID);
  await assert.rejects(session.generate({ max_tokens: 1, if_match: 3 }), RequestError);
  await assert.rejects(session.generate({ stream: true, idempotency_key: "k" }), RequestError);
  assert.equal(requests.length, 0);
});

test("the key, and nothing else of the server's address, is sent along", async () => {
  const seen = [];
  const fetch = async (url, init) => (seen.push([url, init]), Response.json({ status: "live" }));
  await new Client("http://server:9/below/", { apiKey: "secret", fetch }).live();
  assert.equal(seen[0][0], "http://server:9/below/health/live");
  assert.equal(seen[0][1].headers.authorization, "Bearer secret");
  assert.equal(seen[0][1].redirect, "manual");
});

for (const [what, send] of Object.entries({
  "a lone surrogate": (client) => client.score("a\ud800b"),
  "a lone surrogate as a name": (client) => client.sessions.create({ metadata: { "\udc00": 1 } }),
  "a lone surrogate in a long text": (client) => client.sessions.get(ID).append("a".repeat(9_000) + "\ud83d"),
  NaN: (client) => client.sessions.create({ ttl_seconds: NaN }),
  "a bigint": (client) => client.sessions.create({ metadata: { n: 2n ** 64n } }),
  "a function": (client) => client.sessions.create({ metadata: { n: () => 1 } }),
  "a key with a line break": (client) => client.sessions.get(ID).append("a", { idempotency_key: "a\nb" }),
  "a key that is too long": (client) => client.sessions.get(ID).append("a".repeat(5_000), { idempotency_key: "k".repeat(201) }),
  "a key of more pieces than a server knows again": (client) =>
    client.sessions.get(ID).append("a".repeat(1_024 * 4_096 + 1), { idempotency_key: "k" }),
  "a path as an id": async (client) => client.sessions.get("../x"),
  "a path as a snapshot": (client) => client.sessions.get(ID).dropSnapshot("../x"),
})) {
  test(`${what} is refused before anything is sent`, async () => {
    const { client, requests } = recorded();
    await assert.rejects(async () => send(client), RequestError);
    assert.deepEqual(requests, []);
  });
}

test("an address or a key that cannot be one is refused", () => {
  assert.throws(() => new Client("server:80"), RequestError);
  assert.throws(() => new Client("ftp://server"), RequestError);
  assert.throws(() => new Client("http://server", { apiKey: "line\nbreak" }), RequestError);
});

/** What a server answers to a repeat when it has dropped the scores of the first answer. */
const REPEAT = { version: 4, position: 9, replayed: true, scores_stored: false, guards: {}, updates: 0, totals: null };

test("scores that are no longer stored are an error, and a text is appended to its end", async () => {
  const { client, requests } = recorded(REPEAT);
  const session = client.sessions.get(ID);
  const error = await session.append("a".repeat(5_000), { idempotency_key: "k" }).catch((one) => one);
  assert.ok(error instanceof ScoresNotStoredError, error.stack);
  assert.deepEqual([error.message, error.applied], ["applied; its scores are no longer stored", "yes"]);
  assert.deepEqual([error.facts, error.progress.length, requests.length], [{ version: 4, position: 9 }, 5_000, 2]);
  await assert.rejects(session.generate({ commit: true }), ScoresNotStoredError);
  assert.equal((await session.append("a", { scores: "none" })).replayed, true);
});

test("columns that are too short, or missing, are no answer", async () => {
  const totals = { tokens: 2, bytes: 2, logprob: -1, unknown: 0, words: 1 };
  for (const columns of [{ ids: [1, 2], logprobs: [-1] }, { ids: [1], logprobs: [-1] }, {}]) {
    const { client } = recorded({ ...REPEAT, replayed: false, scores_stored: true, totals, ...columns });
    await assert.rejects(client.sessions.get(ID).append("ab"), UnreadableAnswerError);
  }
});
