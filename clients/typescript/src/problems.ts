/** From a problem document (RFC 9457) to the error to throw. Pure: no input, no output. */

import * as errors from "./errors.js";
import type { APIError, Applied } from "./errors.js";

const MEMBERS = new Set(["type", "title", "status", "detail", "applied", "request_id", "instance"]);
const LONGEST_DETAIL = 300;

/** Every class of the server's part of the tree, parents before children. */
export const ERROR_CLASSES: readonly (typeof APIError)[] = Object.values(errors).filter(
  (one): one is typeof APIError => one === errors.APIError || one.prototype instanceof errors.APIError,
).sort((one, other) => depth(one) - depth(other));

function depth(one: object): number {
  return one === Function.prototype ? 0 : 1 + depth(Object.getPrototypeOf(one) as object);
}

/** The class for the server's word; a word this release does not know falls back on the status. */
export function classFor(problemType: string, status: number): typeof APIError {
  return (
    ERROR_CLASSES.find((one) => one.type !== "" && one.type === problemType) ??
    ERROR_CLASSES.find((one) => one.status === status) ??
    errors.APIError
  );
}

/** The error for an answer with a status of 400 or more, whoever wrote it. */
export function fromAnswer(status: number, headers: Headers, text: string, requestId: string): APIError {
  const problem = document(text) ?? { detail: plainDetail(status, text) };
  const known = { request_id: headers.get("x-request-id") ?? requestId, ...problem };
  return fromProblem(status, known, seconds(headers.get("retry-after")));
}

/** The error for a problem document, which came as an answer or as the last event of a stream. */
export function fromProblem(
  status: number,
  problem: Readonly<Record<string, unknown>>,
  retryAfter: number | null = null,
): APIError {
  const detail = problem["detail"] || problem["title"] || `the server answered ${status}`;
  const requestId = problem["request_id"];
  const ErrorClass = classFor(lastWord(problem["type"]), status);
  return new ErrorClass(String(detail), {
    applied: applied(problem["applied"], status),
    status,
    requestId: typeof requestId === "string" ? requestId : null,
    retryAfter: retryAfter ?? seconds(problem["retry_after"]),
    facts: Object.fromEntries(Object.entries(problem).filter(([name]) => !MEMBERS.has(name))),
  });
}

/** A Retry-After of seconds; the form with a date is not used by this server, nor is it read. */
export function seconds(value: unknown): number | null {
  const given = typeof value === "number" || (typeof value === "string" && value.trim() !== "");
  const number = given ? Number(value) : NaN;
  return Number.isFinite(number) && number >= 0 ? number : null;
}

function document(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : null;
  } catch {
    return null;
  }
}

/** Whether a value is a JSON object. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function plainDetail(status: number, text: string): string {
  const said = [...text.trim().replace(/\s+/gu, " ")].slice(0, LONGEST_DETAIL).join("");
  return `the server answered ${status} without a problem document${said && `: ${said}`}`;
}

/** The word of a `type`, which may stand alone or end a URI. */
function lastWord(problemType: unknown): string {
  return typeof problemType === "string" ? (problemType.split(/[/#:]/u).at(-1) ?? "") : "";
}

function applied(value: unknown, status: number): Applied {
  if (value === "no" || value === "yes" || value === "unknown") {
    return value;
  }
  return status < 500 ? "no" : "unknown";
}
