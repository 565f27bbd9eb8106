/**
 * Asks with one key until it is known what became of an operation, or the time is up.
 *
 * **Invariant:** an operation has one key, made and kept before the first byte leaves, whatever the answers are. Once a try may have had its
 * effect (`doubt`), only an answer of the record can say that the operation did not happen.
 */
import { delayMs } from "./backoff.js";
import { isReplayed, judge, judgePoll, told } from "./judge.js";
import { newKey } from "./keys.js";
import { AnswerTooLarge, send } from "./send.js";
const DEFAULTS = {
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
    #options;
    constructor(options = {}) {
        this.#options = options;
        limitsOf(options);
    }
    /** Runs one operation. Throws only before anything is sent: what cannot be sent, or a key that cannot be kept. */
    async run(request, which = {}) {
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
    async done(result) {
        if (result.outcome === "may_have_happened" || result.name === null)
            return false;
        await this.#options.keys?.forget(result.name, result.key);
        return true;
    }
    async #key(which) {
        if (which.key !== undefined && which.name !== undefined)
            throw new TypeError("give `name` or `key`, not both");
        if (which.key !== undefined)
            return { key: checked(which.key), isResumed: true };
        const fresh = newKey();
        if (which.name === undefined)
            return { key: fresh, isResumed: false };
        if (!this.#options.keys)
            throw new TypeError("a name was given, and the client has no `keys` to keep a key in");
        const key = (await this.#options.keys.load(which.name)) ?? (await this.#options.keys.save(which.name, fresh));
        return { key, isResumed: key !== fresh };
    }
}
/** One operation under way. */
class Operation {
    #sending;
    #limits;
    #fetch;
    #signal;
    #endAt;
    /** Some try may have had its effect, or may still have it. */
    #doubt;
    #attempts = 0;
    #poll = null;
    #last = null;
    constructor(sending, limits, by, doubt, signal) {
        this.#sending = sending;
        this.#limits = limits;
        this.#fetch = by;
        this.#doubt = doubt;
        this.#signal = signal;
        this.#endAt = performance.now() + limits.deadlineMs;
    }
    async run() {
        let waitMs = 0;
        for (;;) {
            const stop = this.#stop(waitMs);
            if (stop)
                return this.#ended(this.#doubt ? "may_have_happened" : "did_not_happen", stop);
            await wait(waitMs, this.#signal);
            if (this.#signal?.aborted)
                continue;
            const verdict = await this.#try();
            if (verdict.is !== "again")
                return this.#over(verdict);
            this.#doubt ||= verdict.doubt;
            this.#poll = this.#within(verdict.poll);
            const headers = this.#last?.answer?.headers ?? null;
            waitMs = verdict.atOnce ? 0 : delayMs(this.#attempts, headers, this.#limits, Date.now(), Math.random());
        }
    }
    async #try() {
        this.#attempts += 1;
        const timeoutMs = Math.min(this.#limits.tryTimeoutMs, this.#endAt - performance.now());
        const sending = this.#poll === null ? this.#sending : question(this.#sending, this.#poll);
        const exchange = await send(this.#fetch, sending, { timeoutMs, bytesMax: this.#limits.answerBytesMax }, this.#signal);
        this.#last = exchange;
        if (exchange.answer === null && exchange.error instanceof AnswerTooLarge)
            return { is: "unclear", why: "answer_too_large" };
        if (exchange.answer === null)
            return { is: "again", doubt: exchange.isSent, ...this.#sameAgain() };
        return this.#poll === null ? judge(exchange.answer) : judgePoll(exchange.answer, this.#poll.href);
    }
    #sameAgain() {
        return this.#poll === null ? {} : { poll: this.#poll.href };
    }
    #stop(waitMs) {
        if (this.#signal?.aborted)
            return "cancelled";
        if (this.#attempts >= this.#limits.attemptsMax)
            return "attempts";
        return performance.now() + waitMs >= this.#endAt ? "deadline" : null;
    }
    #over(verdict) {
        switch (verdict.is) {
            case "happened": {
                const answer = this.#last?.answer;
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
    #ended(outcome, why) {
        const last = this.#last;
        const error = last?.answer === null ? last.error : null;
        return { outcome, why, answer: last?.answer ? told(last.answer) : null, error, attempts: this.#attempts };
    }
    /** Where to ask, if it is at the same server: credentials go nowhere else. */
    #within(location) {
        if (location === undefined || !URL.canParse(location, this.#sending.url.href))
            return null;
        const url = new URL(location, this.#sending.url);
        return url.origin === this.#sending.url.origin ? url : null;
    }
}
/** A question about accepted work: whoever asks is the same, and nothing is asked for. */
function question(sending, url) {
    const headers = new Headers(sending.headers);
    for (const name of ["idempotency-key", "content-type", "prefer"])
        headers.delete(name);
    return { method: "GET", url, headers, body: null };
}
const OWN_HEADERS = ["connection", "content-length", "host", "transfer-encoding"];
function prepare(request) {
    const url = new URL(request.url);
    if (url.protocol !== "http:" && url.protocol !== "https:")
        throw new TypeError(`${url.href} is not an http or https URL`);
    const headers = new Headers(request.headers);
    for (const name of OWN_HEADERS)
        if (headers.has(name))
            throw new TypeError(`the header ${name} is the client's to set`);
    if (headers.has("idempotency-key"))
        throw new TypeError("the key is the client's to make; to go on with one, give it as `key`");
    if (request.json !== undefined && request.body !== undefined)
        throw new TypeError("give `body` or `json`, not both");
    const text = request.json === undefined ? request.body : JSON.stringify(request.json);
    if (request.json !== undefined && !headers.has("content-type"))
        headers.set("content-type", "application/json");
    const body = text === undefined ? null : typeof text === "string" ? new TextEncoder().encode(text) : text.slice();
    const method = request.method ?? "POST";
    // What `fetch` would refuse is refused here: later it would look like a failure on the way.
    new Request(url, { method, headers, body });
    return { method, url, headers, body };
}
function checked(key) {
    if (/^[\x21\x23-\x5b\x5d-\x7e]{1,255}$/.test(key))
        return key;
    throw new TypeError("a key is 1 to 255 characters of visible ASCII without quotation marks and backslashes");
}
function limitsOf(options) {
    const limits = { ...DEFAULTS, ...defined(options) };
    for (const name of Object.keys(DEFAULTS)) {
        const value = limits[name];
        if (!(Number.isFinite(value) && value >= 0))
            throw new RangeError(`${name} is ${value}, and should be a number from 0`);
    }
    return limits;
}
/** Without what is undefined, which would hide a default. */
function defined(given) {
    return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
}
/** Ends early when the signal comes. */
function wait(ms, signal) {
    if (ms <= 0 || signal?.aborted)
        return Promise.resolve();
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
