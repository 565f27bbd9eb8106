/**
 * One try: a request goes out once, and its answer is read whole, or it is said whether the request may have got through.
 *
 * Not here: what an answer means (`judge.ts`), and whether there is another try (`client.ts`).
 */

import type { Answer } from "./judge.js";

/** What goes out, the same bytes each time. */
export interface Sending {
  readonly method: string;
  readonly url: URL;
  readonly headers: Headers;
  readonly body: Uint8Array | null;
}

/** How a try ended. */
export type Exchange =
  | { readonly answer: Answer }
  /** `isSent` is false only where it is proved that nothing was. */
  | { readonly answer: null; readonly error: Error; readonly isSent: boolean };

/** How long a try may take, and how long its answer may be. */
export interface Bounds {
  readonly timeoutMs: number;
  readonly bytesMax: number;
}

/** The answer is longer than the client reads. */
export class AnswerTooLarge extends Error {}

/** Sends it, within these bounds. Redirects are answers: what is behind them has another record. */
export async function send(by: typeof fetch, sending: Sending, bounds: Bounds, signal?: AbortSignal): Promise<Exchange> {
  const { timeoutMs, bytesMax } = bounds;
  const ended = new AbortController();
  const timer = setTimeout(() => ended.abort(new Error(`no answer within ${Math.round(timeoutMs)} ms`)), timeoutMs);
  const cancel = () => ended.abort(new Error("cancelled"));
  signal?.addEventListener("abort", cancel, { once: true });
  try {
    const { method, headers, body } = sending;
    const response = await by(sending.url, { method, headers, body, redirect: "manual", signal: ended.signal });
    return { answer: { status: response.status, headers: response.headers, body: await whole(response, bytesMax) } };
  } catch (thrown) {
    const error = thrown instanceof Error ? thrown : new Error(String(thrown));
    return { answer: null, error, isSent: !isProvedUnsent(error) };
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", cancel);
  }
}

async function whole(response: Response, bytesMax: number): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  let length = 0;
  for await (const piece of (response.body ?? []) as AsyncIterable<Uint8Array>) {
    length += piece.byteLength;
    // Thrown here, it ends the connection too.
    if (length > bytesMax) throw new AnswerTooLarge(`the answer is longer than ${bytesMax} bytes, and was not read`);
    pieces.push(piece);
  }
  return new Uint8Array(Buffer.concat(pieces, length));
}

const HANDSHAKE_FAILED = /^(CERT_|DEPTH_ZERO_|SELF_SIGNED_|UNABLE_TO_(GET|VERIFY)_|ERR_TLS_CERT_)/;

/** No connection was made, so no byte of the request has left. */
function isProvedUnsent(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code, syscall } = error as { code?: unknown; syscall?: unknown };
  if (syscall === "connect" || syscall === "getaddrinfo" || code === "UND_ERR_CONNECT_TIMEOUT") return true;
  if (typeof code === "string" && HANDSHAKE_FAILED.test(code)) return true;
  // Several addresses were tried.
  if (error instanceof AggregateError) return error.errors.length > 0 && error.errors.every(isProvedUnsent);
  return isProvedUnsent(error.cause);
}
