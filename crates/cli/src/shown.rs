//! One record and its story, for people.

use std::fmt::Write as _;

use serde_json::Value;

use crate::output;

/// One record as it is now, and how it became so.
pub(crate) fn whole(shown: &Value) -> String {
    let mut text = if shown["state"] == ABSENT { gone(shown) } else { record(shown) };
    text.push_str(&timeline(&shown["story"], shown["story_left_out"].as_u64().unwrap_or_default()));
    text
}

/// The state of a record that is gone.
pub(crate) const ABSENT: &str = "absent";

fn gone(shown: &Value) -> String {
    let id = shown["id"].as_str().unwrap_or("–");
    format!(
        "{:<12} {id}\n{:<12} {ABSENT}\n{:<12} there is no record any more; this is what its story tells\n",
        "record", "state", "meaning"
    )
}

/// What happened, a line each; times are UTC.
fn timeline(story: &Value, left_out: u64) -> String {
    let mut text = String::new();
    let mut day = "";
    for entry in story.as_array().into_iter().flatten() {
        let (date, time) = entry["at"].as_str().and_then(|at| at.split_once('T')).unwrap_or_default();
        if date != day {
            let name = if day.is_empty() { "story" } else { "" };
            let _ = writeln!(text, "{}{name:<12} {date}, UTC", if day.is_empty() { "\n" } else { "" });
            if day.is_empty() && left_out > 0 {
                let _ = writeln!(text, "{:<12}  earlier entries that are not shown: {left_out}", "…");
            }
            day = date;
        }
        // To the millisecond.
        let time = time.get(..12).unwrap_or(time);
        let words = output::one_line(entry["words"].as_str().unwrap_or("–"));
        let _ = writeln!(text, "{time}  {words}   ({})", place(entry, &words));
        let mark = if entry["alarm"] == true { "!!" } else { "" };
        for remark in entry["remarks"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let _ = writeln!(text, "{mark:<12}  {remark}");
        }
    }
    text
}

/// Where it happened, and to which attempt.
fn place(entry: &Value, words: &str) -> String {
    let mut place = output::one_line(entry["node"].as_str().unwrap_or("–"));
    let attempt = entry["attempt"].as_u64().filter(|attempt| *attempt > 0);
    if let Some(attempt) = attempt.filter(|_| !words.contains("attempt ")) {
        let _ = write!(place, ", attempt {attempt}");
    }
    if attempt.is_some() {
        let _ = write!(place, ", fence {}", entry["fence"]);
    }
    place
}

/// One record, as it is now.
pub(crate) fn record(record: &Value) -> String {
    let text = |name: &str| record[name].as_str();
    let mut story = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(story, "{name:<12} {value}");
    };
    line("record", text("id").unwrap_or("–"));
    line("key", text("key").unwrap_or("–"));
    line("scope", text("scope").unwrap_or("–"));
    line("operation", text("operation").unwrap_or("–"));
    line("state", &output::state(text("state").unwrap_or("–")));
    line("meaning", meaning(record));
    line("version", text("version").unwrap_or("–"));
    line("created", text("created_at").unwrap_or("–"));
    if let Some(at) = text("last_run_at") {
        line("last run", &format!("{at}, attempt {}", record["attempts"]));
    }
    if let Some(until) = record["lease"]["until"].as_str() {
        line(
            "leased",
            &format!("until {until}, at most until {}", record["lease"]["deadline"].as_str().unwrap_or("–")),
        );
    }
    if let Some(at) = text("settled_at") {
        line("settled", at);
    }
    if let Some(at) = text("expires_at") {
        line("expires", at);
    }
    if let Some(since) = record["doubt"]["since"].as_str() {
        let tries = &record["doubt"]["tries"];
        let asked = match tries.as_u64() {
            None | Some(0) => "nobody has asked about it yet".to_owned(),
            Some(1) => "asked about once".to_owned(),
            Some(tries) => format!("asked about {tries} times"),
        };
        let parked =
            if record["doubt"]["parked"] == true { ", parked: it waits for an operator" } else { "" };
        line("in doubt", &format!("since {since}; {asked}{parked}"));
    }
    if let Some(code) = record["last_error"]["code"].as_str() {
        line(
            "last error",
            &output::one_line(&format!(
                "{code}: {}",
                record["last_error"]["detail"].as_str().unwrap_or_default()
            )),
        );
    }
    if let Some(reference) = text("provider_reference") {
        line("provider", &output::one_line(reference));
    }
    let answer = &record["answer"];
    if let Some(status) = answer["status"].as_u64() {
        let kept = if answer["kept"] == true {
            format!("{status}, {} bytes kept", answer["body_bytes"])
        } else {
            format!("{status}, too large to keep")
        };
        line("answer", &kept);
        if let Some(location) = location(answer) {
            line("location", &output::one_line(location));
        }
        if let Some(body) = answer["body"].as_str() {
            let _ = writeln!(story, "\n{}", output::harmless(body));
        }
        if let Some(body) = answer["body_hex"].as_str() {
            let _ = writeln!(story, "\nnot text; in hexadecimal digits:\n{body}");
        }
    }
    story
}

/// Where the result is, if the answer says so.
fn location(answer: &Value) -> Option<&str> {
    let headers = answer["headers"].as_array().into_iter().flatten();
    let mut header = headers.filter(|header| header[0] == "location").filter_map(|header| header[1].as_str());
    answer["location"].as_str().or_else(|| header.next())
}

fn meaning(record: &Value) -> &'static str {
    match record["state"].as_str().unwrap_or_default() {
        "pending" => "accepted; nobody runs it yet",
        "in_progress" => "being executed right now",
        "lapsed" => {
            "its holder is gone; the next retry makes it unknown, or goes on with it, as its crash policy says"
        }
        "completed" if record["answer"]["kept"] == false => {
            "over; its answer was too large to keep, so retries get 409 answer_not_kept"
        }
        "completed" => "over; retries get the stored answer",
        "failed_retryable" => "proved to have had no effect; the same key may run again",
        "unknown" => {
            "may or may not have happened: ask whoever is behind; until it is settled, retries get 409 outcome_unknown"
        }
        "expired" => "past its retention, or forgotten; its answer is no longer replayed",
        _ => "–",
    }
}
