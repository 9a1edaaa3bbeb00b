// Connections that break: what was asked for is done once, or the error says what is known.

import assert from "node:assert/strict";
import net from "node:net";
import { after, test } from "node:test";

const rlstm = await import(`${process.env.CLIENT}/index.js`);
const { Client } = rlstm;
const { URL: url, KEY: apiKey } = process.env;
const TEXT = "It was the best of times, it was the worst of times. ";
const quick = { firstWait: 0.01 };
const servers = [];
after(() => servers.forEach((server) => server.close()));

/** A proxy that does with each connection what `faults` says next; a number is how many bytes come back. */
async function proxy(...faults) {
  const seen = { connections: 0, bytes: 0 };
  const { hostname, port } = new URL(url);
  const server = net.createServer((client) => {
    const fault = faults[seen.connections++] ?? "through";
    if (fault === "refuse") {
      client.destroy();
      return;
    }
    const upstream = net.connect(Number(port), hostname);
    client.on("data", (data) => upstream.write(data));
    let passed = 0;
    upstream.on("data", (data) => {
      if (fault === "cut the answer") {
        client.destroy(); // the server has done it, and nobody learns of it
        return;
      }
      const left = typeof fault === "number" ? fault - passed : Infinity;
      passed += data.length;
      client.write(data.subarray(0, left));
      if (data.length > left) {
        client.end();
        upstream.destroy();
      }
    });
    client.on("close", () => upstream.end()).on("error", () => {});
    upstream.on("close", () => client.end()).on("error", () => client.destroy());
  });
  servers.push(server);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  // A connection a request, so that each meets its fault.
  const fetchOnce = (input, init) => fetch(input, { ...init, headers: { ...init.headers, connection: "close" } });
  return { address: `http://127.0.0.1:${server.address().port}`, seen, fetch: fetchOnce };
}

/** A session, through a proxy with these faults. */
async function through(faults, options = {}) {
  const { id } = await new Client(url, { apiKey }).sessions.create({ text: TEXT });
  const { address, seen, fetch } = await proxy(...faults);
  const cut = new Client(address, { apiKey, fetch, retries: quick, ...options }).sessions.get(id);
  return { cut, seen, whole: new Client(url, { apiKey }).sessions.get(id) };
}

test("an append whose answer was lost is counted once", async () => {
  const { cut, seen, whole } = await through(["cut the answer", "cut the answer"]);
  const answer = await cut.append(TEXT);
  assert.equal(seen.connections, 3);
  assert.equal(answer.replayed, true);
  const { version, position } = await whole.info();
  assert.deepEqual([version, position], [2, 2 * TEXT.length]);
});

test("so is each piece of a long text", async () => {
  const { cut, whole } = await through(["cut the answer", "through", "refuse", "cut the answer", "through"]);
  const answer = await cut.append("x".repeat(4_200), { learn: false, if_match: 1 });
  assert.equal(answer.totals.bytes, 4_200);
  const { version, position } = await whole.info();
  assert.deepEqual([version, position], [3, TEXT.length + 4_200]);
});

for (const verb of ["fork", "snapshot", "reset", "update", "generate"]) {
  test(`so is ${verb}`, async () => {
    const { cut, seen, whole } = await through(["cut the answer"]);
    const own = { snapshot: ["here"], update: [{ learning: false }], generate: [{ commit: true, max_tokens: 20 }] };
    await cut[verb](...(own[verb] ?? []));
    assert.equal(seen.connections, 2);
    const { version, position } = await whole.info();
    const versions = { fork: 1, snapshot: 1, generate: 3 };
    assert.equal(version, versions[verb] ?? 2);
    assert.equal(position, TEXT.length + (verb === "generate" ? 20 : 0));
    const forks = [];
    for await (const { forked_from } of new Client(url, { apiKey }).sessions.list()) {
      forks.push(...(forked_from?.session === whole.id ? [whole.id] : []));
    }
    assert.equal(forks.length, verb === "fork" ? 1 : 0);
  });
}

test("an error says how far a long text came, and the piece and its key go on", async () => {
  const { cut, whole } = await through(["through", "cut the answer"], { retries: { attempts: 1 } });
  const text = "é".repeat(5_000);
  const error = await cut.append(text, { learn: false }).then(assert.fail, (error) => error);
  assert.ok(error instanceof rlstm.ConnectionLostError, error.stack);
  assert.equal(error.applied, "unknown");
  assert.equal(error.progress.length, 2_048);
  assert.equal(error.progress.answer.totals.bytes, 4_096);
  assert.equal(error.progress.piece, text.slice(2_048, 4_096));
  const answer = await whole.append(error.progress.piece, { learn: false, idempotency_key: error.progress.key });
  assert.equal(answer.replayed, true);
});

test("texts that fail say how far they came", async () => {
  const { whole } = await through([]);
  const texts = function* () {
    yield "some ";
    yield "words";
    throw new TypeError("no more of them");
  };
  const before = (await whole.info()).position;
  const answers = whole.appendStream(texts(), { gatherBytes: 1 });
  assert.equal((await answers.next()).value.position, before + 5);
  await answers.next();
  const error = await answers.next().then(assert.fail, (error) => error);
  assert.ok(error instanceof TypeError, error.stack);
  assert.deepEqual(error.progress, { answer: null, length: 10, piece: null, key: null, following: [] });
});

test("a kept text goes on where its stream broke off, and nothing comes twice", async () => {
  const { cut, seen, whole } = await through([2_000, 3_000, "refuse", 2_500]);
  const events = [];
  for await (const event of await cut.generate({ commit: true, stream: true, max_tokens: 100 })) {
    events.push(event);
  }
  assert.ok(seen.connections >= 4);
  assert.deepEqual(events.slice(0, -1).map((event) => event.step), [...Array(100).keys()]);
  assert.equal(events.at(-1).event, "end");
  assert.equal((await whole.info()).position, TEXT.length + 100);
});

test("a text that nobody keeps is not begun again after its first event", async () => {
  const { cut, seen } = await through([2_000]);
  const events = [];
  const error = await (async () => {
    for await (const event of await cut.generate({ stream: true, max_tokens: 1_000 })) {
      events.push(event);
    }
  })().then(assert.fail, (error) => error);
  assert.ok(error instanceof rlstm.NoAnswerError, error.stack);
  assert.ok(events.length > 0);
  assert.equal(seen.connections, 1);
});

test("a file that does not arrive whole is fetched again", async () => {
  const { cut, seen, whole } = await through([4_000]);
  const file = await cut.export();
  assert.equal(seen.connections, 2);
  assert.equal(file.size, (await whole.export()).size);
});

test("an answer that does not come in time", async () => {
  const server = net.createServer(() => {});
  servers.push(server);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${server.address().port}`;
  const client = new Client(address, { timeout: 0.2, retries: { attempts: 2, firstWait: 0 } });
  await assert.rejects(client.live(), rlstm.TimedOutError);
  const error = await client.sessions.create().then(assert.fail, (error) => error);
  assert.ok(error instanceof rlstm.TimedOutError);
  assert.equal(error.applied, "unknown");
  await assert.rejects(client.generate("a", { stream: true }), rlstm.TimedOutError);
});

test("nobody there: nothing was sent, and the error says so", async () => {
  const server = net.createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  const client = new Client(`http://127.0.0.1:${port}`, { retries: quick });
  const error = await client.sessions.create().then(assert.fail, (error) => error);
  assert.ok(error instanceof rlstm.CannotConnectError, error.stack);
  assert.equal(error.applied, "no");
});

test("nobody there any more: what an attempt before left open stays open", async () => {
  const failures = [{}, { code: "ECONNREFUSED" }, { code: "ECONNREFUSED" }];
  const fetch = async () => {
    throw new TypeError("fetch failed", { cause: failures.shift() });
  };
  const client = new Client("http://server", { fetch, retries: { ...quick, attempts: 3 } });
  const error = await client.sessions.get("s").append("a").then(assert.fail, (error) => error);
  assert.ok(error instanceof rlstm.CannotConnectError, error.stack);
  assert.equal(error.applied, "unknown");
});

test("somebody else's page is no answer", async () => {
  const page = async () => new Response("<html>", { headers: { "content-type": "text/html" } });
  const client = new Client("http://server", { fetch: page });
  await assert.rejects(client.score("a"), rlstm.UnreadableAnswerError);
  await assert.rejects(client.generate("a", { stream: true }), rlstm.UnreadableAnswerError);
  await assert.rejects(client.sessions.get("s").export(), rlstm.UnreadableAnswerError);
  const moved = async () => new Response(null, { status: 302, headers: { location: "http://elsewhere" } });
  await assert.rejects(new Client("http://server", { fetch: moved }).score("a"), rlstm.UnreadableAnswerError);
});
