// Continuous text to a real server: every byte is scored once, and every refusal has its name.

import assert from "node:assert/strict";
import net from "node:net";
import { after, test } from "node:test";

const rlstm = await import(`${process.env.CLIENT}/index.js`);
const { Client } = rlstm;
const { URL: url, CUT: cut, KEY: apiKey, SLOW: slow } = process.env;
const client = new Client(url, { apiKey });
const once = { retries: { attempts: 1 } };
const servers = [];
after(() => servers.forEach((server) => server.close()));

/** Text of characters of one to four bytes. */
function textOf(length) {
  const characters = [..."abcdefg hij\né世🎈"];
  let seed = 1;
  const draw = () => (seed = (seed * 48_271) % 2_147_483_647) % characters.length;
  return Array.from({ length }, () => characters[draw()]).join("");
}

const bytesOf = (text) => new TextEncoder().encode(text).length;
const failure = (work) => work.then(assert.fail, (error) => error);

async function all(stream) {
  const answers = [];
  for await (const answer of stream) {
    answers.push(answer);
  }
  return answers;
}

/** An address that passes connections on to the server until it is told to be gone. */
async function passing() {
  const { hostname, port } = new URL(url);
  const open = new Set();
  const server = net.createServer((socket) => {
    const upstream = net.connect(Number(port), hostname);
    for (const [one, other] of [[socket, upstream], [upstream, socket]]) {
      open.add(one.on("error", () => other.destroy()).on("close", () => other.destroy()));
      one.pipe(other);
    }
  });
  servers.push(server);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const leave = () => (server.close(), open.forEach((socket) => socket.destroy()));
  return { address: `http://127.0.0.1:${server.address().port}`, leave };
}

test("a stream is the same as appends", async () => {
  const text = textOf(1_500);
  const [streamed, appended] = [await client.sessions.create(), await client.sessions.create()];
  const answers = await all(streamed.stream([text.slice(0, 10), "", text.slice(10)], { unit: "bits", final: true }));
  const whole = await appended.append(text, { unit: "bits", final: true });
  assert.ok(answers.length > 2);
  assert.deepEqual(answers.flatMap(({ logprobs }) => logprobs), whole.logprobs);
  assert.deepEqual(answers.flatMap(({ ids }) => ids), whole.ids);
  const [ours, theirs] = [await streamed.info(), await appended.info()];
  assert.deepEqual([ours.position, ours.totals], [theirs.position, theirs.totals]);
  assert.deepEqual(Object.keys(answers[0]).sort(), Object.keys(whole).sort());
});

test("answers come while the text goes on", async () => {
  const session = await client.sessions.create();
  let taken = () => {};
  const texts = async function* () {
    for (let line = 0; line < 5; line += 1) {
      yield "a line\n";
      await new Promise((resolve) => (taken = resolve)); // until its answer is here
    }
  };
  const positions = [];
  for await (const { position } of session.stream(texts(), { scores: "totals" })) {
    positions.push(position);
    taken();
  }
  assert.deepEqual(positions, [7, 14, 21, 28, 35]);
});

test("every byte is scored once, whatever is cut", async () => {
  const text = textOf(Number(process.env.CHARACTERS));
  const session = await client.sessions.create();
  const retries = { attempts: 100, firstWait: 0.01, longestWait: 0.05 };
  const patient = new Client(cut, { apiKey, retries }).sessions.get(session.id);
  const answers = await all(patient.stream(text.match(/[^]{1,200}/gu), { learn: false, scores: "totals" }));
  const { position, totals } = await session.info();
  const scored = answers.reduce((sum, answer) => sum + answer.totals.bytes, 0);
  assert.deepEqual([position, totals.tokens, scored], Array(3).fill(bytesOf(text)));
  console.log(`${scored} bytes in ${answers.length} answers, ${answers.filter(({ replayed }) => replayed).length} of them replayed`);
});

test("after an error the rest can be appended once, by its keys", async () => {
  const session = await client.sessions.create();
  const { address, leave } = await passing();
  const [text, options] = [textOf(200), { learn: false, scores: "totals" }];
  const patient = new Client(address, { apiKey, retries: { attempts: 2, firstWait: 0.01 } });
  const stream = patient.sessions.get(session.id).stream(text.match(/[^]{1,10}/gu), options);
  await stream.next();
  await stream.next();
  leave();
  const error = await failure(all(stream));
  assert.ok(error instanceof rlstm.CannotConnectError, error.stack);
  assert.equal(error.applied, "unknown");
  const { length, piece, key, following } = error.progress;
  let sent = length;
  for (const part of [{ piece, key }, ...following]) {
    assert.equal(part.piece, text.slice(sent, (sent += part.piece.length)));
    await session.append(part.piece, { ...options, idempotency_key: part.key });
  }
  await session.append(text.slice(sent), options);
  assert.equal((await session.info()).position, bytesOf(text));
});

const refused = async (made, options, kind, status) => {
  const error = await failure(all(made.stream(["a"], options)));
  assert.deepEqual([error.name, error.status], [kind.name, status], error.stack);
  assert.match(error.requestId, /^\S{8,}$/);
};

test("401: no key, or a wrong one", async () => {
  const { id } = await client.sessions.create();
  await refused(new Client(url, once).sessions.get(id), {}, rlstm.UnauthorizedError, 401);
  await refused(new Client(url, { apiKey: "wrong", ...once }).sessions.get(id), {}, rlstm.UnauthorizedError, 401);
});

test("404 and 410: no such session, or no more", async () => {
  await refused(client.sessions.get("0".repeat(32)), {}, rlstm.NotFoundError, 404);
  const session = await client.sessions.create();
  await session.delete();
  await refused(session, {}, rlstm.SessionDeletedError, 410);
});

test("422: an option that is none", async () => {
  await refused(await client.sessions.create(), { unit: "bans" }, rlstm.InvalidFieldError, 422);
});

test("429: a quota that is used up is waited for as long as the server says", async () => {
  await new Client(url, { apiKey: slow, ...once }).info().catch(() => {});
  const waits = [];
  const patient = new Client(url, { apiKey: slow, chance: () => 0, sleep: async (seconds) => void waits.push(seconds) });
  await refused(patient.sessions.get("0".repeat(32)), {}, rlstm.RateLimitedError, 429);
  assert.equal(waits.length, 4);
  assert.ok(waits.every((seconds) => seconds >= 1), String(waits)); // its own first wait is shorter
});

test("a session that is deleted meanwhile", async () => {
  const session = await client.sessions.create();
  let deleted;
  const isDeleted = new Promise((resolve) => (deleted = resolve));
  const texts = async function* () {
    yield "before";
    await isDeleted;
    yield "after";
  };
  const stream = session.stream(texts());
  await stream.next();
  deleted(await session.delete());
  const error = await failure(all(stream));
  assert.ok(error instanceof rlstm.SessionDeletedError, error.stack);
  assert.deepEqual([error.status, error.progress.length, error.progress.piece], [410, 6, "after"]);
});

test("a frame that is too large for the server", async () => {
  class Padding extends WebSocket {
    send(frame) {
      super.send(frame + " ".repeat(70_000));
    }
  }
  const session = await client.sessions.create();
  const padding = new Client(url, { apiKey, WebSocket: Padding }).sessions.get(session.id);
  const error = await failure(all(padding.stream(["a"])));
  assert.ok(error instanceof rlstm.TooLargeError, error.stack);
  assert.equal((await session.info()).position, 0);
});

test("a frame that the server does not take", async () => {
  class Wrong extends WebSocket {
    send(frame) {
      super.send(frame.replace('"seq":1', '"seq":0'));
    }
  }
  const { id } = await client.sessions.create();
  const error = await failure(all(new Client(url, { apiKey, WebSocket: Wrong }).sessions.get(id).stream(["a"])));
  assert.ok(error instanceof rlstm.InvalidFieldError, error.stack);
  assert.equal(error.facts.field, "seq");
});

test("another text under a key of the stream is refused", async () => {
  const session = await client.sessions.create();
  const { address, leave } = await passing();
  const stream = new Client(address, { apiKey, ...once }).sessions.get(session.id).stream(["a", "b", "c"]);
  await stream.next();
  leave();
  const error = await failure(all(stream));
  await assert.rejects(session.append("else", { idempotency_key: error.progress.key.replace(/\d+$/u, "1") }), rlstm.IdempotencyMismatchError);
});

test("a stream can be left, and aborted, and the session used by others meanwhile and afterwards", async () => {
  const session = await client.sessions.create();
  const texts = Array(1_000).fill("a");
  for await (const _ of session.stream(texts)) {
    await session.append("from elsewhere");
    break;
  }
  const controller = new AbortController();
  const aborted = session.stream(texts, { signal: controller.signal });
  await aborted.next();
  controller.abort(new Error("enough"));
  await assert.rejects(aborted.next(), /enough/);
  const { position } = await session.info();
  assert.ok(position >= 16 && position < 100, String(position));
  assert.ok((await session.append("b")).position > position);
});
