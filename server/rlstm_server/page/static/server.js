/** The server as the page calls it. Whatever goes wrong is a Problem, in the server's own words where it has any. */

const KEY = "rlstm.key";
const PATIENCE_MS = 120_000;
const TYPE = "urn:rlstm:problem:";

/** Why there is no answer: a problem document (RFC 9457), or what is known without one. */
export class Problem extends Error {
  constructor({ status, title, detail = "", type = "", applied = "no", request_id: requestId = "" }, retryAfter = null) {
    super(title);
    Object.assign(this, { status, title, detail, applied, requestId, retryAfter });
    this.slug = type.replace(TYPE, "");
  }

  /** Whether the same request, with the same key, may succeed by itself later. */
  get isPassing() {
    if (this.status === 0 || this.status === 502 || this.slug === "in_flight") return true;
    return [429, 503, 504].includes(this.status) && this.applied !== "yes";
  }

  /** Whether the session is no longer there. */
  get isGone() {
    return this.status === 410 || this.status === 404;
  }
}

/** The key for the server: this tab's, and gone with it. */
export const keyOf = {
  get: () => sessionStorage.getItem(KEY),
  set: (key) => sessionStorage.setItem(KEY, key),
  forget: () => sessionStorage.removeItem(KEY),
};

/** A key by which the server knows a repetition of the same request. */
export function newOperation() {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Send a request and give its JSON; null where the answer has no content. Raises Problem. */
export async function ask(method, path, { body, operation } = {}) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (operation !== undefined) headers["idempotency-key"] = operation;
  if (keyOf.get() !== null) headers.authorization = `Bearer ${keyOf.get()}`;
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (response.ok) return response.status === 204 ? null : await response.json();
  } catch {
    throw new Problem({ status: 0, title: "The server does not answer.", applied: "unknown" });
  }
  throw await problemOf(response);
}

async function problemOf(response) {
  const seconds = Number.parseFloat(response.headers.get("retry-after"));
  const told = await response.json().catch(() => null);
  const known = typeof told?.title === "string" ? told : {
    title: `The server answered ${response.status}.`,
    applied: response.status < 500 ? "no" : "unknown",
  };
  return new Problem({ ...known, status: response.status }, Number.isFinite(seconds) ? seconds : null);
}
