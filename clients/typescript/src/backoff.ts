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
export function delayMs(attempts: number, headers: Headers | null, bounds: Backoff, nowMs: number, dice: number): number {
  const step = Math.min(bounds.backoffMaxMs, bounds.backoffMs * 2 ** Math.min(attempts - 1, 30));
  const asked = headers === null ? 0 : retryAfterMs(headers, nowMs);
  return Math.min(asked, bounds.retryAfterMaxMs) + dice * step;
}

/** `Retry-After` as seconds or as an HTTP date; 0 if there is none, or none that can be read. */
export function retryAfterMs(headers: Headers, nowMs: number): number {
  const value = headers.get("retry-after")?.trim() ?? "";
  if (/^\d+$/.test(value)) return Number(value) * 1000;
  // A date is by the clock of whoever wrote it, which also dated the answer.
  const until = Date.parse(value);
  const from = Date.parse(headers.get("date") ?? "");
  const span = until - (Number.isNaN(from) ? nowMs : from);
  return Number.isNaN(span) ? 0 : Math.max(0, span);
}
