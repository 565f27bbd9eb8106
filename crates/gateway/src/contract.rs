//! What an API promises about retries, for those who call it: each route's published contract, as Markdown.
//!
//! Pure, and nothing is restated by hand that the code can be asked: which answers are kept comes from core's `classify`, statuses and
//! `Retry-After` from its problem documents, example keys are read by its reader. Not here: the same for OpenAPI (`openapi`).

mod endings;
pub(crate) mod example;
mod refusals;

use std::fmt::Write as _;
use std::time::Duration;

use oncegate_core::fingerprint::{Fields, Mode, Pointer};
use oncegate_core::policy::{Credentials, EmptyKey, KeyForm, KeySyntax, Mismatch, Policy, ScopeWidth};
use oncegate_core::problem::TYPE_BASE;
use oncegate_core::record::{AfterRetention, CrashPolicy, Execution, RetentionFrom};

use crate::config::{Config, From, Rule, ScopeRule, Size};

pub(crate) use endings::Endings;
pub(crate) use refusals::{Refusal, refusals};

/// Each route's contract.
#[must_use]
pub fn contract(config: &Config) -> String {
    let mut page = String::from(INTRODUCTION);
    page.push_str("\n## Whose key it is\n\n");
    paragraph(&mut page, &owner(&config.scope));
    for rule in &config.routes {
        route(&mut page, rule, &config.scope);
    }
    route(&mut page, &config.otherwise, &config.scope);
    page
}

const INTRODUCTION: &str = "\
# Idempotency: what clients can rely on

A request to a protected endpoint that carries an `Idempotency-Key` takes effect once, however often it is sent.

- Make a key, such as a UUID, once for each operation. Keep it, and send it with the first try and with every retry.
- Send the same request again until you have an answer that is not about the key. Never make a new key for a retry: to this API that
  is a new operation.
- Put no personal data into a key. Keys are stored, and operators see them in logs and tools. A random UUID says nothing about a person.
- A replay reports what happened when the operation ran, not the current state: what it created may have changed since. Ask for the
  resource itself to see its state.
- What the idempotency boundary answers in its own voice is a problem document (`application/problem+json`, RFC 9457). Its `code` is for
  programs, its `type` leads to a page about it, and its `detail` says what happened and what to do next. All other answers are the
  API's own.
";

fn route(page: &mut String, rule: &Rule, scope: &ScopeRule) {
    let policy = &rule.policy;
    let is_rest = rule.pattern == "*";
    let title = if is_rest { "Everything else".to_owned() } else { code(&rule.pattern) };
    let _ = write!(page, "\n## {title}\n\n");
    if rule.is_off() {
        let words = "Not protected: requests pass as they are, an `Idempotency-Key` has no effect, and each one that is sent may be executed.";
        paragraph(page, words);
        return;
    }
    if is_rest {
        let methods: Vec<_> = policy.methods.iter().map(|method| code(method)).collect();
        let words = "is protected where no route above matches. Other methods pass as they are.";
        paragraph(page, &format!("Every {} {words}", methods.join(" and every ")));
        page.push('\n');
    }
    for line in [key(policy), width(policy, rule.name.is_some()), sameness(policy)] {
        let _ = writeln!(page, "- {line}");
    }
    if let Some(line) = example::line(policy) {
        let _ = write!(page, "\n```http\n{line}\n```\n");
    }
    deferred(page, policy);
    answers(page, policy);
    retention(page, policy);
    own_answers(page, &refusals(policy, scope, rule.preauthorize.is_some()));
}

fn paragraph(page: &mut String, words: &str) {
    page.push_str(words);
    page.push('\n');
}

/// Whose key it is, in words.
pub(crate) fn owner(scope: &ScopeRule) -> String {
    let mut words = match &scope.from {
        From::Authorization => {
            "Keys belong to the credentials in `Authorization`: two callers may choose the same key, and never see each other's \
             answers. Credentials that change between two tries, such as a token that is renewed, make the second a new \
             operation; retry with the same ones."
                .to_owned()
        }
        From::Header(name) => format!(
            "Keys belong to the caller that the proxy in front of this API has authenticated (it says so in {}): two callers may \
             choose the same key, and never see each other's answers.",
            code(name.as_str())
        ),
    };
    if !scope.also.is_empty() {
        let names: Vec<_> = scope.also.iter().map(|name| code(name.as_str())).collect();
        let _ = write!(words, " The value of {} is part of the owner, too.", names.join(" and of "));
    }
    if scope.shares_anonymous {
        words.push_str(" All callers without credentials share one space of keys: choose random ones.");
    }
    words
}

fn key(policy: &Policy) -> String {
    let key = &policy.key;
    let required = match (key.required, key.empty) {
        (true, EmptyKey::Refused) => "**Key**: required.",
        (true, EmptyKey::Absent) => "**Key**: required; an empty one counts as none.",
        (false, EmptyKey::Refused) => {
            "**Key**: optional. A request without one passes unprotected; an empty one is refused."
        }
        (false, EmptyKey::Absent) => {
            "**Key**: optional. A request without one, or with an empty one, passes unprotected."
        }
    };
    let syntax = match key.syntax {
        KeySyntax::Structured => "in double quotes (a Structured Field String, RFC 9651)",
        KeySyntax::Opaque => "taken as it stands: quotes would be part of it",
        KeySyntax::Either => "in double quotes or bare; both forms of one value are the same key",
    };
    let chars = match (key.chars_min.max(1), key.chars_max) {
        (min, max) if min == max => format!("{min}"),
        (min, max) => format!("{min} to {max}"),
    };
    let form = match &key.form {
        KeyForm::Any => String::new(),
        KeyForm::Uuid => " It must be a UUID.".to_owned(),
        KeyForm::Pattern(pattern) => format!(" All of it must match {}.", code(pattern.as_str())),
    };
    format!(
        "{required} {chars} characters of printable ASCII, {syntax}.{form} One `Idempotency-Key` header per request."
    )
}

fn width(policy: &Policy, is_named: bool) -> String {
    let words = match policy.scope {
        ScopeWidth::Tenant => {
            "one space of keys for each caller. A key that was used at another endpoint is used here too."
        }
        ScopeWidth::TenantAndOperation if is_named => {
            "one space of keys for each caller at this endpoint. Other endpoints do not see its keys."
        }
        ScopeWidth::TenantAndOperation => {
            "one space of keys for each caller, method and path. Another path does not see its keys."
        }
    };
    format!("**Scope**: {words}")
}

/// What makes two requests the same, in words.
pub(crate) fn sameness(policy: &Policy) -> String {
    let list = |pointers: &[Pointer]| {
        let all: Vec<_> = pointers.iter().map(|pointer| code(&pointer.to_string())).collect();
        all.join(", ")
    };
    let words = match &policy.fingerprint {
        Mode::Json => "method, path, query and what the body says. Order of members, space and spelling of numbers in JSON do not count."
            .to_owned(),
        Mode::Raw => "method, path, query, media type and the body's bytes.".to_owned(),
        Mode::Fields(Fields::Include(only)) => {
            format!("method, path, query and, of a JSON body, {}; nothing else of it counts.", list(only))
        }
        Mode::Fields(Fields::Exclude(without)) => {
            format!("method, path, query and what the body says; of a JSON body all but {}.", list(without))
        }
        Mode::None => {
            return "**The same request** is any request with the same key, method and path: query and body are not compared. Take \
                    care not to use a key twice."
                .to_owned();
        }
    };
    let misuse = match policy.mismatch {
        Mismatch::Refuse(_) => "",
        Mismatch::Replay => {
            " Another request with the same key gets the first one's answer, and is not executed."
        }
    };
    format!("**The same request** has the same key and the same {words}{misuse}")
}

/// What is said of requests that are run later.
fn deferred(page: &mut String, policy: &Policy) {
    if !policy.may_defer() {
        return;
    }
    let when = match policy.execution {
        Execution::Deferred => "A request is accepted at once",
        Execution::Inline => "With `Prefer: respond-async` a request is accepted at once",
    };
    let wait = span(policy.wait_limit);
    let caller = match policy.credentials {
        Credentials::Kept => {
            "It runs with the credentials of the request that was accepted: send some that are valid until then. If the API refuses \
             them twice in a row (401, 403, 407), it is not tried again, and its state is `unknown` until an operator of the API decides."
        }
        Credentials::Dropped => "It runs without your credentials.",
    };
    let _ = write!(
        page,
        "\n**Answered later**: {when}, with 202, and run by itself. `Location` is where its answer will be: `GET` gives 202 and the state \
         until it is over, and then the answer; so does the same request with the same key. `Retry-After` says when to ask. \
         `Prefer: wait=10` holds either of them for up to so many seconds, here at most {wait}, and gives the answer if it is there by then. \
         `DELETE` of that location takes a request back that waits (204, else 409 `not_cancellable`). What does not succeed and had no \
         effect is tried again by itself, for up to {}; then its answer is 408 `not_started`. {caller}\n",
        span(policy.retention)
    );
}

fn answers(page: &mut String, policy: &Policy) {
    let endings = Endings::of(policy);
    page.push_str("\n**What becomes of the API's answer**\n\n| status | then |\n| --- | --- |\n");
    let replayed = format!(
        "The operation is over. The answer is kept, and every retry gets it again, with {}.",
        code(&format!("{}: true", header_case(policy.replayed_header)))
    );
    let (released, unknown) = match policy.execution {
        Execution::Inline => (
            "Nothing was done, and nothing is kept: the same request with the same key is executed again.",
            "It may have had its effect. The answer is passed on to the first caller and not kept; retries get `outcome_unknown` until it is found out.",
        ),
        Execution::Deferred => (
            "Nothing was done, and nothing is kept: it is executed again by itself, after a pause.",
            "It may have had its effect. The answer is passed on to nobody; the state is `unknown` until it is found out.",
        ),
    };
    let rows =
        [(&endings.kept, replayed.as_str()), (&endings.released, released), (&endings.unknown, unknown)];
    for (statuses, then) in rows {
        if let Some(statuses) = statuses {
            let _ = writeln!(page, "| {statuses} | {then} |");
        }
    }
    let crash = match policy.crash {
        CrashPolicy::Reconcile => {
            "retries get `outcome_unknown` until it is found out, and it is not executed again"
        }
        CrashPolicy::Resume => "a retry goes on where it was interrupted",
        CrashPolicy::Restart => {
            "a retry is executed again under the same key, by which the service behind recognises it"
        }
    };
    let _ = write!(
        page,
        "| none: a timeout, a broken connection, a crash | It may have had its effect: {crash}. |\n\n\
         The API may mark a single answer otherwise. Kept are its status, its end-to-end headers{} and up to {} of body.\n",
        if policy.keeps_cookies { ", `Set-Cookie` too," } else { " (no `Set-Cookie`, no `Date`)" },
        Size(policy.answer_bytes_max)
    );
}

fn retention(page: &mut String, policy: &Policy) {
    let kept = span(policy.retention);
    let from = match policy.retention_from {
        RetentionFrom::Settlement => "from the end of the operation",
        RetentionFrom::Creation => "from its first request",
    };
    let after = match policy.after_retention {
        AfterRetention::Fresh => {
            "After that the key is new: the same request is executed again. Do not retry for longer."
                .to_owned()
        }
        AfterRetention::Gone { status, tombstone } => format!(
            "After that the key is refused with {} `key_expired` for {}, and nothing is executed.",
            status.code(),
            span(tombstone)
        ),
    };
    let _ = write!(
        page,
        "\n**How long**: answers are kept for {kept} {from}; `Idempotency-Expires` says until when. {after}\n"
    );
}

fn own_answers(page: &mut String, refusals: &[Refusal]) {
    page.push_str("\n**What the boundary answers itself**\n\n| status | code | when | what to do |\n| --- | --- | --- | --- |\n");
    for Refusal { code, status, retry_after_s, when, then } in refusals {
        let name = code.name();
        let wait = match retry_after_s {
            Some(seconds) => format!("Wait for `Retry-After` ({seconds} s). "),
            None => String::new(),
        };
        let _ = writeln!(page, "| {status} | [`{name}`]({TYPE_BASE}{name}) | {when} | {wait}{then} |");
    }
}

/// As people write it: `Idempotency-Replayed`.
pub(crate) fn header_case(name: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    };
    name.split('-').map(capital).collect::<Vec<_>>().join("-")
}

/// `2 days`, `1 h`, `90 s`
fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    for (unit, name) in [(86_400, "day"), (3600, "h"), (60, "min")] {
        if span.subsec_nanos() == 0 && seconds > 0 && seconds.is_multiple_of(unit) {
            let many = if name == "day" && seconds != unit { "s" } else { "" };
            return format!("{} {name}{many}", seconds / unit);
        }
    }
    format!("{} s", span.as_secs_f64())
}

/// Text as Markdown code, whatever it holds.
fn code(text: &str) -> String {
    let text = text.replace(char::is_control, " ");
    let mut longest = 0;
    let mut run = 0;
    for letter in text.chars() {
        run = if letter == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    if longest == 0 {
        return format!("`{text}`");
    }
    let fence = "`".repeat(longest + 1);
    format!("{fence} {text} {fence}")
}
