/**
 * Asks with one key until it is known what became of an operation, or the time is up.
 *
 * **Invariant:** an operation has one key, made and kept before the first byte leaves, whatever the answers are. Once a try may have had its
 * effect (`doubt`), only an answer of the record can say that the operation did not happen.
 */
import { type Backoff } from "./backoff.js";
import { type Answer, type Why } from "./judge.js";
import { type KeyStore } from "./keys.js";
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
(Ended & {
    readonly outcome: "happened";
    readonly answer: Answer;
    readonly replayed: boolean;
})
/** It had no effect and, under this key, will have none. */
 | (Ended & {
    readonly outcome: "did_not_happen";
    readonly why: Why;
    readonly answer: Answer | null;
    readonly error: Error | null;
})
/** Nobody knows yet. Do not make a new key: go on with this one. */
 | (Ended & {
    readonly outcome: "may_have_happened";
    readonly why: Why;
    readonly answer: Answer | null;
    readonly error: Error | null;
});
/** Sends operations. It keeps nothing between them, so that one client may run many at once. */
export declare class Client {
    #private;
    constructor(options?: Options);
    /** Runs one operation. Throws only before anything is sent: what cannot be sent, or a key that cannot be kept. */
    run(request: OperationRequest, which?: Which): Promise<Result>;
    /**
     * To be called when the caller has taken note of a result, durably: then its key is forgotten, if the result is certain. Says whether.
     *
     * Not done by `run`: a caller that dies between the result and its own note of it would come back with a new key.
     * Another key that this name has by now is another operation's, and stays.
     */
    done(result: Result): Promise<boolean>;
}
export {};
