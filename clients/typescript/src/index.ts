/**
 * The TypeScript client of a server whose language models go on learning as they read.
 *
 *     import { Client } from "rlstm-client";
 *
 *     const session = await new Client("http://127.0.0.1:8000").sessions.create();
 *     const { totals } = await session.append("a text of any length");
 */

export { Client, type GenerateOptions, type Health, type ServerInfo } from "./client.js";
export { type ClientOptions, EventStream } from "./connection.js";
export * from "./errors.js";
export type { GenerationEvent } from "./events.js";
export type { StreamOptions } from "./frames.js";
export type { AppendOptions } from "./pieces.js";
export type { Retries } from "./retries.js";
export type * from "./schema.js";
export { type AppendStreamOptions, Session, type SessionGenerateOptions, Sessions } from "./sessions.js";
export type { WebSocketLike, WebSocketMaker } from "./sockets.js";
export { TextStream } from "./streaming.js";
export type { CallOptions, Fields, Operation, Options } from "./wire.js";
