/**
 * What one answer says about an operation: the contract's table, as a function.
 *
 * Pure: no clock, no I/O. What earlier tries left behind is the caller's business (`client.ts`); a verdict is about this answer alone.
 *
 * **Invariant:** an answer that anybody but the record could have given never settles what an earlier try may have done.
 */
const TYPE_BASE = "https://oncegate.dev/problems/";
const NOTHING_DONE = { is: "again", doubt: false };
const IN_DOUBT = { is: "again", doubt: true };
/** What the gateway says in its own voice. `answer_not_kept` is not here: it speaks of another answer. */
const PROBLEMS = new Map([
    ["in_progress", IN_DOUBT],
    ["not_cancellable", IN_DOUBT],
    ["outcome_unknown", IN_DOUBT],
    ["upstream_unreachable", NOTHING_DONE],
    ["store_unavailable", NOTHING_DONE],
    ["authorization_unavailable", NOTHING_DONE],
    ["overloaded", NOTHING_DONE],
    ["rate_limited", NOTHING_DONE],
    ["too_many_keys", NOTHING_DONE],
    ["body_too_slow", NOTHING_DONE],
    ["not_started", { is: "did_not_happen", why: "not_started" }],
    ["cancelled", { is: "did_not_happen", why: "cancelled" }],
    ["upstream_failed", { is: "unclear", why: "upstream_failed" }],
    ["key_reused", { is: "refused", why: "key_reused" }],
    ["key_expired", { is: "refused", why: "key_expired" }],
    ["key_missing", { is: "refused", why: "key_missing" }],
    ["key_invalid", { is: "refused", why: "key_invalid" }],
    ["request_invalid", { is: "refused", why: "request_invalid" }],
    ["request_malformed", { is: "refused", why: "request_malformed" }],
    ["scope_missing", { is: "refused", why: "scope_missing" }],
    ["not_authorized", { is: "refused", why: "not_authorized" }],
    ["too_large", { is: "refused", why: "too_large" }],
    ["operation_not_found", { is: "refused", why: "operation_not_found" }],
]);
/** Judges an answer to the request itself. */
export function judge(answer) {
    const said = problem(answer);
    if (said?.code === "answer_not_kept")
        return byRecord(Number(said.answer_status));
    const verdict = said && PROBLEMS.get(said.code);
    if (verdict)
        return at(asFarAsItIsKnown(verdict, said?.["attempted"]), answer);
    return isKept(answer) ? byRecord(answer.status) : byStatus(answer);
}
/** Judges an answer to a question about accepted work. Unless it is the record's own, the request itself is the authority. */
export function judgePoll(answer, location) {
    const state = answer.status === 200 ? operationState(answer) : null;
    if (state === null && isKept(answer))
        return judge(answer);
    const isLater = answer.status === 202 || answer.status === 429 || answer.status >= 500;
    if (isUnderWay(state) || isLater)
        return { is: "again", doubt: true, poll: location };
    return { is: "again", doubt: true, atOnce: true };
}
/** What the caller is given: for an answer that was not kept, what is known of it. */
export function told(answer) {
    const said = problem(answer);
    if (said?.code !== "answer_not_kept")
        return answer;
    const headers = new Headers();
    if (typeof said.answer_location === "string")
        headers.set("location", said.answer_location);
    return { status: Number(said.answer_status), headers, body: null };
}
/** The answer comes from the record, not from an execution just now. */
export function isReplayed(answer) {
    const marks = ["idempotency-replayed", "idempotent-replayed"];
    return marks.some((mark) => answer.headers.get(mark) === "true") || problem(answer)?.code === "answer_not_kept";
}
/** The record vouches for it: this is the operation's one answer. */
function isKept(answer) {
    return isReplayed(answer) || answer.headers.has("idempotency-expires");
}
/**
 * Of accepted work that is over without an answer of the API's. If it was attempted, that it did nothing may be no more than the API's word on a
 * 500, which is not taken for any other 500 either.
 */
function asFarAsItIsKnown(verdict, attempted) {
    if (verdict.is !== "did_not_happen" || attempted === undefined || attempted === false)
        return verdict;
    return { is: "unclear", why: verdict.why };
}
function byRecord(status) {
    if (status >= 200 && status < 400)
        return { is: "happened" };
    if (status >= 400 && status < 500)
        return { is: "did_not_happen", why: "refused" };
    return { is: "unclear", why: "failed" };
}
/** Of an answer that no record vouches for: from the API, or from anybody on the way. */
function byStatus(answer) {
    const { status } = answer;
    const state = answer.headers.get("idempotency-state");
    // The API's own account, which may differ from what its status looks like.
    if (state !== null && state !== "failed_retryable")
        return IN_DOUBT;
    if (state !== null && status >= 200 && status < 400)
        return NOTHING_DONE;
    if (status === 202 && isUnderWay(operationState(answer)))
        return at(IN_DOUBT, answer);
    if (status >= 200 && status < 300)
        return { is: "happened" };
    if (status >= 300 && status < 400)
        return { is: "unclear", why: "redirected" };
    if (status === 425 || status === 429)
        return NOTHING_DONE;
    // Meant for a request that did not come in time; but many frameworks say it when a handler took too long.
    if (status === 408)
        return IN_DOUBT;
    if ((status >= 400 && status < 500) || status === 501 || status === 505)
        return { is: "refused", why: "refused" };
    return IN_DOUBT;
}
/** Work that was accepted says where to ask for it; where that was lost on the way, the request itself asks. */
function at(verdict, answer) {
    const location = answer.headers.get("location");
    if (verdict.is !== "again" || answer.status !== 202 || location === null)
        return verdict;
    return { ...verdict, poll: location };
}
/** A problem document of the gateway's, told by its type: an API may have problems of its own. */
function problem(answer) {
    if (!answer.headers.get("content-type")?.startsWith("application/problem+json"))
        return null;
    const document = json(answer);
    const type = document?.["type"];
    if (typeof type !== "string" || !type.startsWith(TYPE_BASE))
        return null;
    return { ...document, code: type.slice(TYPE_BASE.length) };
}
/** The state in the gateway's own words about an operation: its 202, or `GET /.oncegate/operations/{id}`. */
function operationState(answer) {
    const document = json(answer);
    const isOperation = typeof document?.["id"] === "string" && document["id"].startsWith("op_");
    return isOperation && typeof document["state"] === "string" ? document["state"] : null;
}
/** In these states an operation has no answer yet. */
function isUnderWay(state) {
    return state === "pending" || state === "in_progress" || state === "unknown";
}
function json(answer) {
    try {
        const value = JSON.parse(new TextDecoder().decode(answer.body ?? new Uint8Array()));
        return typeof value === "object" && value !== null ? value : null;
    }
    catch {
        return null;
    }
}
