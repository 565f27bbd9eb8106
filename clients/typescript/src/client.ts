/**
 * Asks with one key until it is known what became of an operation, or the time is up.
 *
 * **Invariant:** an operation has one key, made and kept before the first byte leaves, whatever the answers are. Once a try may have had its
 * effect (`doubt`), only an answer of the record can say that the operation did not happen.
 */

import { type Backoff, delayMs } from "./backoff.js";
import { type Answer, type Verdict, type Why, isReplayed, judge, judgePoll, told } from "./judge.js";
import { type KeyStore, newKey } from "./keys.js";
import { AnswerTooLarge, type Exchange, type Sending, send } from "./send.js";

/** How long and how often to ask. All times are in milliseconds. */
export interface Limits extends Backoff {
  /** For the whole operation. */
  readonly deadlineMs: number;
  /** Requests sent for one operation, questions about accepted work included. */
  readonly attemptsMax: number;
  /** For one try, from the connection to the last byte of the answer. */
  readonly tryTimeoutMs: number;
  /** Of an answer that is longer nobody looks at what it says. 16 MiB. */
  readonly answerBytesMax: number;
}

export interface Options extends Partial<Limits> {
  /** Where keys survive a restart. */
  readonly keys?: KeyStore;
  /** `Idempotency-Key: "…"` as the standard says, or without quotation marks for servers that take the value literally. */
  readonly keyForm?: "quoted" | "bare";
  /** What sends; the global `fetch` unless told otherwise. It must not retry by itself. */
  readonly fetch?: typeof fetch;
}

/** What is asked for. The same bytes are sent each time. */
export interface OperationRequest {
  readonly url: string | URL;
  /** POST unless told otherwise. */
  readonly method?: string;
  readonly headers?: Record<string, string> | Headers;
  /** The body as it is; or `json`. */
  readonly body?: string | Uint8Array;
  readonly json?: unknown;
}

/** Which operation it is, and for how long to ask this time. */
export interface Which extends Partial<Limits> {
  /** The caller's name for this one operation; with it, the key is kept in `Options.keys`. */
  readonly name?: string;
  /** The key of an operation begun earlier, to go on with it. */
  readonly key?: string;
  /** Gives up; the result says what is known until then. */
  readonly signal?: AbortSignal;
}

interface Ended {
  readonly key: string;
  readonly name: string | null;
  readonly attempts: number;
}

/** What became of the operation. */
export type Result =
  /** It took effect, once, and this is its answer; `replayed` if it was given before. */
  | (Ended & { readonly outcome: "happened"; readonly answer: Answer; readonly replayed: boolean })
  /** It had no effect and, under this key, will have none. */
  | (Ended & { readonly outcome: "did_not_happen"; readonly why: Why; readonly answer: Answer | null; readonly error: Error | null })
  /** Nobody knows yet. Do not make a new key: go on with this one. */
  | (Ended & { readonly outcome: "may_have_happened"; readonly why: Why; readonly answer: Answer | null; readonly error: Error | null });

const DEFAULTS: Limits = {
  deadlineMs: 120_000,
  attemptsMax: 100,
  tryTimeoutMs: 30_000,
  answerBytesMax: 16 * 1024 * 1024,
  backoffMs: 200,
  backoffMaxMs: 10_000,
  retryAfterMaxMs: 60_000,
};

/** Sends operations. It keeps nothing between them, so that one client may run many at once. */
export class Client {
  readonly #options: Options;

  constructor(options: Options = {}) {
    this.#options = options;
    limitsOf(options);
  }

  /** Runs one operation. Throws only before anything is sent: what cannot be sent, or a key that cannot be kept. */
  async run(request: OperationRequest, which: Which = {}): Promise<Result> {
    const limits = limitsOf({ ...this.#options, ...defined(which) });
    const prepared = prepare(request);
    const { key, isResumed } = await this.#key(which);
    const headers = new Headers(prepared.headers);
    headers.set("idempotency-key", this.#options.keyForm === "bare" ? key : `"${key}"`);
    const operation = new Operation({ ...prepared, headers }, limits, this.#options.fetch ?? fetch, isResumed, which.signal);
    return { key, name: which.name ?? null, ...(await operation.run()) };
  }

  /**
   * To be called when the caller has taken note of a result, durably: then its key is forgotten, if the result is certain. Says whether.
   *
   * Not done by `run`: a caller that dies between the result and its own note of it would come back with a new key.
   * Another key that this name has by now is another operation's, and stays.
   */
  async done(result: Result): Promise<boolean> {
    if (result.outcome === "may_have_happened" || result.name === null) return false;
    await this.#options.keys?.forget(result.name, result.key);
    return true;
  }

  async #key(which: Which): Promise<{ key: string; isResumed: boolean }> {
    if (which.key !== undefined && which.name !== undefined) throw new TypeError("give `name` or `key`, not both");
    if (which.key !== undefined) return { key: checked(which.key), isResumed: true };
    const fresh = newKey();
    if (which.name === undefined) return { key: fresh, isResumed: false };
    if (!this.#options.keys) throw new TypeError("a name was given, and the client has no `keys` to keep a key in");
    const key = (await this.#options.keys.load(which.name)) ?? (await this.#options.keys.save(which.name, fresh));
    return { key, isResumed: key !== fresh };
  }
}

type End = Result extends infer R ? (R extends Result ? Omit<R, "key" | "name"> : never) : never;

/** One operation under way. */
class Operation {
  readonly #sending: Sending;
  readonly #limits: Limits;
  readonly #fetch: typeof fetch;
  readonly #signal: AbortSignal | undefined;
  readonly #endAt: number;
  /** Some try may have had its effect, or may still have it. */
  #doubt: boolean;
  #attempts = 0;
  #poll: URL | null = null;
  #last: Exchange | null = null;

  constructor(sending: Sending, limits: Limits, by: typeof fetch, doubt: boolean, signal?: AbortSignal) {
    this.#sending = sending;
    this.#limits = limits;
    this.#fetch = by;
    this.#doubt = doubt;
    this.#signal = signal;
    this.#endAt = performance.now() + limits.deadlineMs;
  }

  async run(): Promise<End> {
    let waitMs = 0;
    for (;;) {
      const stop = this.#stop(waitMs);
      if (stop) return this.#ended(this.#doubt ? "may_have_happened" : "did_not_happen", stop);
      await wait(waitMs, this.#signal);
      if (this.#signal?.aborted) continue;
      const verdict = await this.#try();
      if (verdict.is !== "again") return this.#over(verdict);
      this.#doubt ||= verdict.doubt;
      this.#poll = this.#within(verdict.poll);
      const headers = this.#last?.answer?.headers ?? null;
      waitMs = verdict.atOnce ? 0 : delayMs(this.#attempts, headers, this.#limits, Date.now(), Math.random());
    }
  }

  async #try(): Promise<Verdict> {
    this.#attempts += 1;
    const timeoutMs = Math.min(this.#limits.tryTimeoutMs, this.#endAt - performance.now());
    const sending = this.#poll === null ? this.#sending : question(this.#sending, this.#poll);
    const exchange = await send(this.#fetch, sending, { timeoutMs, bytesMax: this.#limits.answerBytesMax }, this.#signal);
    this.#last = exchange;
    if (exchange.answer === null && exchange.error instanceof AnswerTooLarge) return { is: "unclear", why: "answer_too_large" };
    if (exchange.answer === null) return { is: "again", doubt: exchange.isSent, ...this.#sameAgain() };
    return this.#poll === null ? judge(exchange.answer) : judgePoll(exchange.answer, this.#poll.href);
  }

  #sameAgain(): { poll?: string } {
    return this.#poll === null ? {} : { poll: this.#poll.href };
  }

  #stop(waitMs: number): Why | null {
    if (this.#signal?.aborted) return "cancelled";
    if (this.#attempts >= this.#limits.attemptsMax) return "attempts";
    return performance.now() + waitMs >= this.#endAt ? "deadline" : null;
  }

  #over(verdict: Exclude<Verdict, { is: "again" }>): End {
    switch (verdict.is) {
      case "happened": {
        const answer = this.#last?.answer as Answer;
        return { outcome: "happened", answer: told(answer), replayed: isReplayed(answer), attempts: this.#attempts };
      }
      case "did_not_happen":
        return this.#ended("did_not_happen", verdict.why);
      case "refused":
        return this.#ended(this.#doubt ? "may_have_happened" : "did_not_happen", verdict.why);
      case "unclear":
        return this.#ended("may_have_happened", verdict.why);
    }
  }

  #ended(outcome: "did_not_happen" | "may_have_happened", why: Why): End {
    const last = this.#last;
    const error = last?.answer === null ? last.error : null;
    return { outcome, why, answer: last?.answer ? told(last.answer) : null, error, attempts: this.#attempts };
  }

  /** Where to ask, if it is at the same server: credentials go nowhere else. */
  #within(location: string | undefined): URL | null {
    if (location === undefined || !URL.canParse(location, this.#sending.url.href)) return null;
    const url = new URL(location, this.#sending.url);
    return url.origin === this.#sending.url.origin ? url : null;
  }
}

/** A question about accepted work: whoever asks is the same, and nothing is asked for. */
function question(sending: Sending, url: URL): Sending {
  const headers = new Headers(sending.headers);
  for (const name of ["idempotency-key", "content-type", "prefer"]) headers.delete(name);
  return { method: "GET", url, headers, body: null };
}

const OWN_HEADERS = ["connection", "content-length", "host", "transfer-encoding"];

function prepare(request: OperationRequest): Sending {
  const url = new URL(request.url);
  if (url.protocol !== "http:" && url.protocol !== "https:") throw new TypeError(`${url.href} is not an http or https URL`);
  const headers = new Headers(request.headers);
  for (const name of OWN_HEADERS) if (headers.has(name)) throw new TypeError(`the header ${name} is the client's to set`);
  if (headers.has("idempotency-key")) throw new TypeError("the key is the client's to make; to go on with one, give it as `key`");
  if (request.json !== undefined && request.body !== undefined) throw new TypeError("give `body` or `json`, not both");
  const text = request.json === undefined ? request.body : JSON.stringify(request.json);
  if (request.json !== undefined && !headers.has("content-type")) headers.set("content-type", "application/json");
  const body = text === undefined ? null : typeof text === "string" ? new TextEncoder().encode(text) : text.slice();
  const method = request.method ?? "POST";
  // What `fetch` would refuse is refused here: later it would look like a failure on the way.
  new Request(url, { method, headers, body });
  return { method, url, headers, body };
}

function checked(key: string): string {
  if (/^[\x21\x23-\x5b\x5d-\x7e]{1,255}$/.test(key)) return key;
  throw new TypeError("a key is 1 to 255 characters of visible ASCII without quotation marks and backslashes");
}

function limitsOf(options: Partial<Limits>): Limits {
  const limits = { ...DEFAULTS, ...defined(options) };
  for (const name of Object.keys(DEFAULTS) as (keyof Limits)[]) {
    const value = limits[name];
    if (!(Number.isFinite(value) && value >= 0)) throw new RangeError(`${name} is ${value}, and should be a number from 0`);
  }
  return limits;
}

/** Without what is undefined, which would hide a default. */
function defined<T extends object>(given: T): T {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) as T;
}

/** Ends early when the signal comes. */
function wait(ms: number, signal?: AbortSignal): Promise<void> {
  if (ms <= 0 || signal?.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener("abort", end, { once: true });
  });
}
