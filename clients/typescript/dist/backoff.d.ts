/**
 * How long to wait before asking again. Pure: time and dice come in.
 *
 * Never sooner than the server asks; on top of that capped exponential backoff with full jitter, so that those who were sent away together do
 * not come back together.
 */
/** Bounds of waiting, in milliseconds. */
export interface Backoff {
    /** The first step of the ladder. */
    readonly backoffMs: number;
    /** Its last. */
    readonly backoffMaxMs: number;
    /** What a server may ask for at most. */
    readonly retryAfterMaxMs: number;
}
/** The wait after so many attempts. `dice` is in [0, 1). */
export declare function delayMs(attempts: number, headers: Headers | null, bounds: Backoff, nowMs: number, dice: number): number;
/** `Retry-After` as seconds or as an HTTP date; 0 if there is none, or none that can be read. */
export declare function retryAfterMs(headers: Headers, nowMs: number): number;
