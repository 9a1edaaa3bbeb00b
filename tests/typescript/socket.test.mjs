// Streams over WebSockets that are played here: what is sent when, how each end is named, and what ends a stream.

import assert from "node:assert/strict";
import { test } from "node:test";

const rlstm = await import(`${process.env.CLIENT}/index.js`);
const { Client } = rlstm;
const ID = "s1";
const ANSWER = { version: 1, position: 1, replayed: false, totals: { tokens: 0 } };

const settled = () => new Promise((resolve) => setTimeout(resolve, 5));
const failure = (work) => work.then(assert.fail, (error) => error);

/**
 * A client whose WebSockets do what the next of `steps` says each: `acknowledges` is how many frames are
 * acknowledged, `says` and `code` what comes then; "refuse" and "never" do not open.
 */
function played(steps, { plain, ...options } = {}) {
  const sockets = [];
  class Played {
    frames = [];
    isClosed = false;

    constructor(url, protocols) {
      this.step = steps[sockets.length] ?? {};
      Object.assign(this, { url, protocols });
      sockets.push(this);
      const opens = { refuse: () => this.onerror({}), never: () => {} }[this.step] ?? (() => this.says({ type: "ready" }));
      setTimeout(opens);
    }

    says(frame) {
      this.onmessage({ data: typeof frame === "string" ? frame : JSON.stringify(frame) });
    }

    send(data) {
      const frame = JSON.parse(data);
      const count = this.frames.push(frame);
      setTimeout(() => this.answers(frame, count));
    }

    answers({ seq }, count) {
      const { acknowledges = Infinity, says, code } = this.step;
      if (count <= acknowledges) {
        this.says({ type: "scores", seq, ...ANSWER });
      } else {
        says === undefined || this.says(says);
        code === undefined || this.onclose({ code, reason: "" });
      }
    }

    close() {
      this.isClosed = true;
    }
  }
  const asked = [];
  const fetch = async (url) => {
    asked.push(url);
    return (plain ?? (() => Promise.reject(new TypeError("no server is there"))))();
  };
  const settings = { WebSocket: Played, fetch, retries: { attempts: 3, firstWait: 0.001 }, ...options };
  return { session: new Client("http://server/below", settings).sessions.get(ID), sockets, asked };
}

const problem = (status, type, headers = {}) =>
  Response.json({ type: `urn:rlstm:problem:${type}`, status, detail: "no", applied: "no" }, { status, headers });

async function all(stream) {
  const answers = [];
  for await (const answer of stream) {
    answers.push(answer);
  }
  return answers;
}

async function* endless() {
  for (;;) {
    yield "a";
  }
}

test("it goes below the server's address, with the key as a subprotocol", async () => {
  const { session, sockets } = played([], { apiKey: "k-1" });
  assert.deepEqual(await all(session.stream(["a"], { unit: "bits" })), [ANSWER]);
  assert.match(sockets[0].url, /^ws:\/\/server\/below\/sessions\/s1\/stream\?stream=[0-9a-f]{32}&unit=bits$/);
  assert.deepEqual(sockets[0].protocols, ["rlstm.v1", "bearer.k-1"]);
  assert.ok(sockets[0].isClosed);
});

test("what was not acknowledged is sent again, under its number and the stream's name", async () => {
  const { session, sockets } = played([{ acknowledges: 1, code: 1006 }, { acknowledges: 0, code: 1012 }]);
  assert.equal((await all(session.stream(["a", "b", "c"]))).length, 3);
  const numbers = sockets.map(({ frames }) => frames.map(({ seq, text }) => [seq, text]));
  assert.deepEqual(numbers, [[[1, "a"], [2, "b"], [3, "c"]], [[2, "b"], [3, "c"]], [[2, "b"], [3, "c"]]]);
  assert.equal(new Set(sockets.map(({ url }) => url)).size, 1);
});

test("no more than the window is under way, and no text is asked for before there is room", async () => {
  const { session, sockets } = played([]);
  let given = 0;
  const counted = async function* () {
    for await (const text of endless()) {
      given += 1;
      yield text;
    }
  };
  const stream = session.stream(counted());
  await stream.next();
  await settled();
  assert.deepEqual([sockets[0].frames.length, given], [9, 10]);
  await stream.close();
});

test("an error has what is known: how much is in the session, and keys for the rest", async () => {
  const { session, sockets } = played([{ acknowledges: 1, code: 1006 }], { retries: { attempts: 1 } });
  const error = await failure(all(session.stream(["🙂a", "b", "c"])));
  const name = new URL(sockets[0].url).searchParams.get("stream");
  assert.ok(error instanceof rlstm.ConnectionLostError, error.stack);
  assert.equal(error.applied, "unknown");
  const following = [{ piece: "c", key: `stream:${name}:3` }];
  assert.deepEqual(error.progress, { answer: null, length: 3, piece: "b", key: `stream:${name}:2`, following });
});

for (const [code, kind] of [[1009, "TooLargeError"], [4410, "GoneError"], [4503, "UnavailableError"]]) {
  test(`the closing code ${code} is a ${kind}, and is not tried again`, async () => {
    const { session, sockets } = played([{ acknowledges: 0, code }]);
    const error = await failure(all(session.stream(["a"])));
    assert.deepEqual([error.name, error.applied, sockets.length], [kind, "unknown", 1]);
  });
}

test("an error frame is the server's error, read as any other", async () => {
  const told = { type: "urn:rlstm:problem:session_deleted", status: 410, detail: "x", applied: "no", request_id: "r" };
  const { session } = played([{ acknowledges: 0, says: { type: "error", seq: 1, problem: told }, code: 4410 }]);
  const error = await failure(all(session.stream(["a"])));
  assert.deepEqual([error.name, error.applied, error.requestId], ["SessionDeletedError", "no", "r"]);
});

test("what passes is tried again after an error frame", async () => {
  const told = { type: "urn:rlstm:problem:draining", status: 503, detail: "x", applied: "unknown" };
  const { session, sockets } = played([{ acknowledges: 0, says: { type: "error", seq: 1, problem: told }, code: 4503 }]);
  assert.equal((await all(session.stream(["a"]))).length, 1);
  assert.equal(sockets.length, 2);
});

for (const [what, says] of Object.entries({
  "no JSON": "<html>",
  "no object": "[1]",
  "of no known kind": { type: "news" },
  "the answer to another frame": { type: "scores", seq: 2, ...ANSWER },
})) {
  test(`a frame that is ${what} is not understood`, async () => {
    const { session, sockets } = played([{ acknowledges: 0, says }]);
    const error = await failure(all(session.stream(["a"])));
    assert.ok(error instanceof rlstm.UnreadableAnswerError, error.stack);
    assert.ok(sockets[0].isClosed);
  });
}

test("a refused WebSocket is asked about, and Retry-After obeyed", async () => {
  const waits = [];
  const { session, asked } = played(["refuse", "refuse"], {
    plain: () => problem(429, "rate_limited", { "retry-after": "7" }),
    sleep: async (seconds) => void waits.push(seconds),
    chance: () => 0,
  });
  assert.equal((await all(session.stream(["a"]))).length, 1);
  assert.deepEqual(waits, [7, 7]);
  assert.match(asked[0], /^http:\/\/server\/below\/sessions\/s1\/stream\?stream=/);
});

test("a WebSocket that a proxy swallows is a lost connection, and a page is no server", async () => {
  const swallowed = played(["refuse", "refuse", "refuse"], { plain: () => problem(426, "upgrade_required") });
  assert.ok((await failure(all(swallowed.session.stream(["a"])))) instanceof rlstm.ConnectionLostError);
  assert.equal(swallowed.sockets.length, 3);
  const page = played(["refuse"], { plain: () => new Response("<html>") });
  assert.ok((await failure(all(page.session.stream(["a"])))) instanceof rlstm.UnreadableAnswerError);
});

test("who refuses after a cut, or is gone, tells nothing of what was under way", async () => {
  for (const plain of [() => problem(410, "session_deleted"), undefined]) {
    const { session } = played([{ acknowledges: 0, code: 1006 }, "refuse", "refuse"], { plain });
    const error = await failure(all(session.stream(["a"])));
    assert.equal(error.applied, "unknown", error.stack);
    assert.equal(error.progress.piece, "a");
  }
});

test("a silence is not waited out for ever, and waiting for text is none", async () => {
  const silent = played([{ acknowledges: 0 }, { acknowledges: 0 }], { timeout: 0.05, retries: { attempts: 2, firstWait: 0 } });
  const error = await failure(all(silent.session.stream(["a"])));
  assert.ok(error instanceof rlstm.TimedOutError, error.stack);
  assert.deepEqual([error.applied, silent.sockets.length], ["unknown", 2]);
  const slow = played([], { timeout: 0.05 });
  const texts = async function* () {
    yield "a";
    await new Promise((resolve) => setTimeout(resolve, 150));
    yield "b";
  };
  assert.equal((await all(slow.session.stream(texts()))).length, 2);
  assert.equal(slow.sockets.length, 1);
});

test("a WebSocket that does not open in time", async () => {
  class Never {
    close() {}
  }
  const { session } = played([], { WebSocket: Never, timeout: 0.05, retries: { attempts: 1 } });
  const error = await failure(all(session.stream(["a"])));
  assert.ok(error instanceof rlstm.TimedOutError, error.stack);
  assert.equal(error.applied, "no");
});

test("the texts' own error comes after the answers to what was sent, with progress", async () => {
  const { session } = played([]);
  const texts = function* () {
    yield "some";
    throw new TypeError("no more of them");
  };
  const stream = session.stream(texts());
  assert.deepEqual((await stream.next()).value, ANSWER);
  const error = await failure(stream.next());
  assert.ok(error instanceof TypeError, error.stack);
  assert.deepEqual(error.progress, { answer: null, length: 4, piece: null, key: null, following: [] });
});

test("a text that is none ends the stream, and the texts are told", async () => {
  const { session, sockets } = played([]);
  let isLeft = false;
  const texts = function* () {
    try {
      yield "good";
      yield "bad \ud800!";
      yield "never sent";
    } finally {
      isLeft = true;
    }
  };
  const error = await failure(all(session.stream(texts())));
  assert.ok(error instanceof rlstm.RequestError, error.stack);
  assert.deepEqual([error.progress.length, sockets[0].frames.length, isLeft], [4, 1, true]);
});

test("a pair of surrogates that two texts share is one character, and the last frame is final", async () => {
  const { session, sockets } = played([]);
  await all(session.stream(["a\ud83d", "\ude00", "", "b"], { final: true, learn: false }));
  assert.deepEqual(sockets[0].frames, [
    { seq: 1, text: "a", learn: false },
    { seq: 2, text: "😀", learn: false },
    { seq: 3, text: "b", learn: false, final: true },
  ]);
});

test("no text is no frame", async () => {
  const { session, sockets } = played([]);
  assert.deepEqual(await all(session.stream(["", ""], { final: true })), []);
  assert.deepEqual([sockets.length, sockets[0].isClosed], [1, true]);
});

for (const [what, leave] of Object.entries({
  "left by its loop": async (stream) => { for await (const _ of stream) break; },
  "closed": async (stream) => { await stream.next(); await stream.close(); },
  "closed while an answer is waited for": async (stream) => {
    while (!(await Promise.race([stream.next().then(() => false), settled().then(() => true)])));
    await stream.close();
  },
})) {
  test(`a stream that is ${what} ends: socket, texts and all`, async () => {
    const { session, sockets } = played([{ acknowledges: 3 }]);
    let isLeft = false;
    const texts = { [Symbol.asyncIterator]: () => ({
      next: async () => ({ done: false, value: "a" }),
      return: async () => ((isLeft = true), { done: true, value: undefined }),
    }) };
    const stream = session.stream(texts);
    await leave(stream);
    assert.deepEqual(await stream.next(), { done: true, value: undefined });
    const sent = sockets[0].frames.length;
    await settled();
    assert.deepEqual([sockets[0].isClosed, isLeft, sockets[0].frames.length], [true, true, sent]);
  });
}

for (const [what, steps] of Object.entries({ "waits for an answer": [{ acknowledges: 1 }], "waits to try again": [{ acknowledges: 1, code: 1006 }, "refuse"], "opens": ["never"] })) {
  test(`an aborted signal ends a stream that ${what}`, async () => {
    const reason = new Error("enough");
    const controller = new AbortController();
    const { session, sockets } = played(steps, { retries: { attempts: 9, firstWait: 60 } });
    setTimeout(() => controller.abort(reason), 20);
    const error = await failure(all(session.stream(["a", "b"], { signal: controller.signal })));
    assert.equal(error, reason);
    assert.equal(error.progress.answer, null);
    assert.ok(sockets.at(-1).isClosed || steps.at(-1) === "refuse");
  });
}

test("a signal that is aborted already opens nothing", async () => {
  const { session, sockets } = played([]);
  await assert.rejects(all(session.stream(["a"], { signal: AbortSignal.abort(new Error("enough")) })), /enough/);
  assert.equal(sockets.length, 0);
});

test("an aborted signal closes the connection even while nobody asks for an answer", async () => {
  const controller = new AbortController();
  const { session, sockets } = played([]);
  const stream = session.stream(endless(), { signal: controller.signal });
  await stream.next();
  controller.abort(new Error("enough"));
  assert.ok(sockets[0].isClosed);
  await assert.rejects(stream.next(), /enough/);
});

test("without a WebSocket the error says what to do; a given one is taken", async () => {
  const { WebSocket } = globalThis;
  delete globalThis.WebSocket;
  try {
    const error = await failure(all(new Client("http://server").sessions.get(ID).stream(["a"])));
    assert.ok(error instanceof rlstm.RequestError, error.stack);
    assert.match(error.message, /Node 22.*\{ WebSocket \}/);
    assert.equal((await all(played([]).session.stream(["a"]))).length, 1);
  } finally {
    globalThis.WebSocket = WebSocket;
  }
});

test("a key that no subprotocol can be is refused before anything is sent", async () => {
  const { session, sockets } = played([], { apiKey: "a/b=" });
  const error = await failure(all(session.stream(["a"])));
  assert.ok(error instanceof rlstm.RequestError, error.stack);
  assert.ok(!error.message.includes("a/b="));
  assert.equal(sockets.length, 0);
});

test("what the platform refuses to open is an error of the request", async () => {
  class Refusing {
    constructor() {
      throw new DOMException("insecure", "SecurityError");
    }
  }
  const { session } = played([], { WebSocket: Refusing });
  await assert.rejects(all(session.stream(["a"])), rlstm.RequestError);
});
