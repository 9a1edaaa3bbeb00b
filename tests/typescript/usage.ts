// What the compiler has to take, and what it has to refuse. Nothing here is run.

import { Client, type EventStream, type AppendAnswer, type GenerateAnswer, type TextStream, VersionMismatchError } from "rlstm-client";

export async function takes(client: Client, texts: AsyncIterable<string>, signal: AbortSignal): Promise<void> {
  const session = await client.sessions.create({ adaptation: { experts: 4 }, metadata: { a: 1, b: null }, signal });
  const answer: AppendAnswer = await session.append("text", { learn: false, if_match: 3, idempotency_key: "k" });
  const saved: number | null | undefined = answer.totals?.gain;
  const whole: GenerateAnswer = await session.generate({ commit: true });
  const stream: EventStream = await session.generate({ commit: true, stream: true });
  for await (const event of stream) {
    const text: string = event.event === "token" ? event.text : event.finish_reason;
    text.at(saved ?? whole.seed);
  }
  for await (const part of session.appendStream(texts, { gatherBytes: 1, scores: "totals" })) {
    part.version.toFixed();
  }
  const answers: TextStream = session.stream(texts, { learn: false, final: true, scores: "totals", signal });
  for await (const part of answers) {
    part.version.toFixed();
  }
  const given = new Client("http://server", { WebSocket });
  for await (const part of given.sessions.get("id").stream(["a", "b"])) part.totals?.gain;
  const file: Blob = await session.export({ min_version: 1 });
  await client.sessions.importSession(file, { name: "n" });
  await client.score({ items: [{ text: "a" }, { tokens: [1] }] }, { top: 3 });
}

export async function refuses(client: Client): Promise<void> {
  const session = client.sessions.get("id");
  // @ts-expect-error: no such field
  await session.append("text", { learning: true });
  // @ts-expect-error: the text is given already
  await session.append("text", { text: "another" });
  // @ts-expect-error: a version is a number
  await session.append("text", { if_match: "3" });
  // @ts-expect-error: a text is no sequence of ids
  session.stream([[1, 2]]);
  // @ts-expect-error: a stream has no version to start from
  session.stream(["a"], { if_match: 3 });
  // @ts-expect-error: nobody but the client names a stream
  session.stream(["a"], { stream: "mine" });
  // @ts-expect-error: reading calls have no key
  await session.score(["a"], { idempotency_key: "k" });
  // @ts-expect-error: no such number of experts
  await client.sessions.create({ adaptation: { experts: 3 } });
  // @ts-expect-error: a whole answer is no stream
  for await (const event of await session.generate({ commit: true })) event;
  // @ts-expect-error: totals may be missing
  (await session.append("text")).totals.gain;
  // @ts-expect-error: no such unit
  await client.score("a", { unit: "bans" });
  // @ts-expect-error: answers are not changed
  (await session.info()).version = 3;
  const version: number | null = new VersionMismatchError("moved").currentVersion;
  version?.toFixed();
}
