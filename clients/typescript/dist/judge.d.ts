/**
 * What one answer says about an operation: the contract's table, as a function.
 *
 * Pure: no clock, no I/O. What earlier tries left behind is the caller's business (`client.ts`); a verdict is about this answer alone.
 *
 * **Invariant:** an answer that anybody but the record could have given never settles what an earlier try may have done.
 */
/** An answer, read whole. */
export interface Answer {
    readonly status: number;
    readonly headers: Headers;
    /** `null`: the operation was answered with this status, and its body was too large for the gateway to keep. */
    readonly body: Uint8Array | null;
}
/** Why an operation ended as it did; for programs. The gateway's own refusals go by their problem codes. */
export type Why = 
/** The API answered 4xx. */
"refused"
/** The API answered 5xx, and that answer is kept: to ask again gives the same. */
 | "failed"
/** A redirect that no record vouches for; it is not followed. */
 | "redirected"
/** No time is left. */
 | "deadline"
/** No attempt is left. */
 | "attempts"
/** The answer is longer than the client reads; what it says is not known. */
 | "answer_too_large"
/** The caller gave it up; or it was accepted, and taken back while it waited. */
 | "cancelled" | "key_reused" | "key_expired" | "key_missing" | "key_invalid" | "request_invalid" | "request_malformed" | "scope_missing" | "not_authorized" | "too_large" | "operation_not_found"
/** It was accepted, and not done in time. */
 | "not_started"
/** The gateway forwarded the request unprotected, and got no proper answer: it must not be repeated. */
 | "upstream_failed";
/** What an answer means. */
export type Verdict = 
/** The operation took effect, once. */
{
    readonly is: "happened";
}
/** The record says that it did not, whatever earlier tries looked like. */
 | {
    readonly is: "did_not_happen";
    readonly why: Why;
}
/** This try did nothing, and others like it will not either. Of earlier tries it says nothing. */
 | {
    readonly is: "refused";
    readonly why: Why;
}
/** It is over, and this answer does not say how. */
 | {
    readonly is: "unclear";
    readonly why: Why;
}
/** Ask again, with the same key. `doubt`: this try may have had its effect, or may still have it. */
 | {
    readonly is: "again";
    readonly doubt: boolean;
    readonly poll?: string;
    readonly atOnce?: boolean;
};
/** Judges an answer to the request itself. */
export declare function judge(answer: Answer): Verdict;
/** Judges an answer to a question about accepted work. Unless it is the record's own, the request itself is the authority. */
export declare function judgePoll(answer: Answer, location: string): Verdict;
/** What the caller is given: for an answer that was not kept, what is known of it. */
export declare function told(answer: Answer): Answer;
/** The answer comes from the record, not from an execution just now. */
export declare function isReplayed(answer: Answer): boolean;
