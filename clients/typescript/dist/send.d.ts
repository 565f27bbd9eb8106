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
export type Exchange = {
    readonly answer: Answer;
}
/** `isSent` is false only where it is proved that nothing was. */
 | {
    readonly answer: null;
    readonly error: Error;
    readonly isSent: boolean;
};
/** How long a try may take, and how long its answer may be. */
export interface Bounds {
    readonly timeoutMs: number;
    readonly bytesMax: number;
}
/** The answer is longer than the client reads. */
export declare class AnswerTooLarge extends Error {
}
/** Sends it, within these bounds. Redirects are answers: what is behind them has another record. */
export declare function send(by: typeof fetch, sending: Sending, bounds: Bounds, signal?: AbortSignal): Promise<Exchange>;
