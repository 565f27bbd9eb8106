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
/** Sends it, for no longer than this. Redirects are answers: what is behind them has another record. */
export declare function send(by: typeof fetch, sending: Sending, timeoutMs: number, signal?: AbortSignal): Promise<Exchange>;
