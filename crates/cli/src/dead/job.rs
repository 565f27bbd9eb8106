//! The outbox's part of the dead letters: jobs that were given up.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::SystemTime;

use oncegate_gateway::operate::Verb;
use oncegate_gateway::record::Bodies;
use oncegate_store::jobs::JobId;
use serde_json::Value;

use super::{Tally, age, error_of, moment};
use crate::act::{self, Acting};
use crate::keys::Show;
use crate::output::{self, shortened};
use crate::source::{JobAct, Source, Trouble};
use crate::streams::{print, say};

pub(super) fn table(jobs: &[Value]) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let row = |job: &Value| {
        let text = |name: &str| job[name].as_str().unwrap_or("–").to_owned();
        let since = job["created_at"].as_str().and_then(moment);
        vec![
            text("id"),
            since.map_or_else(|| "–".to_owned(), |since| age(now.saturating_sub(since))),
            job["tries"].to_string(),
            shortened(&text("effect"), 40),
            text("record"),
            shortened(&error_of(job), 80),
        ]
    };
    let rows: Vec<_> = jobs.iter().map(row).collect();
    output::table(&["JOB", "AGE", "TRIES", "EFFECT", "RECORD", "LAST ERROR"], &rows)
}

pub(super) async fn show(args: &Show, id: JobId) -> Result<ExitCode, Trouble> {
    let bodies = if args.body { Bodies::Shown } else { Bodies::Counted };
    let shown = args.source.open().await?.job(id, bodies).await?;
    if args.json {
        return Ok(print(format!("{shown:#}\n").as_bytes()));
    }
    let code = print(whole(&shown).as_bytes());
    if shown["stage"] != "parked" {
        say(format_args!("this is no dead letter: it is {}", shown["stage"].as_str().unwrap_or("–")));
    }
    Ok(code)
}

fn whole(job: &Value) -> String {
    let text = |name: &str| job[name].as_str().unwrap_or("–").to_owned();
    let mut lines = vec![
        ("job", text("id")),
        ("effect", output::one_line(&text("effect"))),
        ("stage", text("stage")),
        ("record", text("record")),
        ("key there", text("downstream_key")),
        ("promised", text("created_at")),
        ("tries", job["tries"].to_string()),
        ("last error", error_of(job)),
    ];
    for (name, of) in [("line", "line"), ("provider", "reference"), ("payload", "payload")] {
        if job[of].is_string() {
            lines.push((name, output::one_line(&text(of))));
        }
    }
    let mut shown = String::new();
    for (name, value) in lines {
        let _ = writeln!(shown, "{name:<12} {value}");
    }
    if job["stage"] == "parked" {
        shown.push_str("\nwhat to do   look at the provider, by the key there; mend what was wrong, then\n");
        let _ = writeln!(shown, "try again:   oncegate dead retry {} --reason TEXT", text("id"));
        let _ = writeln!(shown, "or end it:   oncegate dead withdraw {} --reason TEXT", text("id"));
        if job["answers"] == true {
            let record = text("record");
            let _ = writeln!(
                shown,
                "or settle:   oncegate dead show {record}: its client waits for the answer of this job"
            );
        }
    }
    shown
}

/// All of an effect, however many pages.
pub(super) async fn retry_all(acting: &Acting, effect: &str) -> Result<ExitCode, Trouble> {
    let wish = acting.wish(Verb::Retry, None, act::nothing_more())?;
    let source = acting.source.open().await?.into_acting().await?;
    let jobs = all(&source, effect).await?;
    if jobs.is_empty() {
        say(format_args!("no dead letters"));
        return Ok(ExitCode::SUCCESS);
    }
    say(format_args!("{}", table(&jobs)));
    if !acting.yes {
        let question = format!("Have the machine try these {} again?", jobs.len());
        act::confirm(&question, "Say --yes to go on all the same")?;
    }
    let mut tally = Tally::default();
    for job in &jobs {
        let Some(id) = id_of(job) else { continue };
        tally.count(&id, source.act_on_job(JobAct::Retry, id, &wish).await)?;
    }
    Ok(tally.end("tried", acting.json))
}

fn id_of(job: &Value) -> Option<JobId> {
    job["id"].as_str()?.parse().ok()
}

async fn all(source: &Source, effect: &str) -> Result<Vec<Value>, Trouble> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let mut page = source.parked_jobs(after, 500).await?;
        if let Value::Array(jobs) = page["jobs"].take() {
            found.extend(jobs.into_iter().filter(|job| job["effect"] == effect));
        }
        after = page["next"].as_str().and_then(|next| next.parse().ok());
        if after.is_none() {
            return Ok(found);
        }
    }
}

pub(super) async fn retry(acting: &Acting, text: &str, version: Option<&str>) -> Result<ExitCode, Trouble> {
    if version.is_some() {
        return Err(Trouble::Wrong("--version is for records: a job that is parked has only one".to_owned()));
    }
    act_on(acting, text, JobAct::Retry, "Have the machine try it again?").await
}

pub(super) async fn withdraw(acting: &Acting, text: &str) -> Result<ExitCode, Trouble> {
    act_on(acting, text, JobAct::Withdraw, "End it, so that it is not sent any more?").await
}

async fn act_on(acting: &Acting, text: &str, act: JobAct, question: &str) -> Result<ExitCode, Trouble> {
    let id: JobId =
        text.parse().map_err(|error| Trouble::Wrong(format!("{text:?} is not a job's id: {error}")))?;
    let wish = acting.wish(Verb::Retry, None, act::nothing_more())?;
    let source = acting.source.open().await?.into_acting().await?;
    if !acting.yes {
        say(format_args!("{}", whole(&source.job(id, Bodies::Counted).await?)));
        act::confirm(question, "Say --yes to go on all the same")?;
    }
    let done = source.act_on_job(act, id, &wish).await?;
    Ok(act::say_done(acting, &done))
}
