//! The course of one operation: what is known after each try, and what to do next.
//!
//! Pure: time and dice come in, and what to do goes out. Sending and waiting are for `operation`.
//!
//! **Invariant:** once a try may have had its effect (*doubt*), only an answer of the record can say that the operation did not happen.

use std::time::{Duration, Instant, SystemTime};

use reqwest::Url;

use crate::answer::Answer;
use crate::backoff::{Limits, delay};
use crate::judge::{Then, Trace, Verdict, judge, judge_place};
use crate::outcome::{Asked, DidNotHappen, Happened, Last, MayHaveHappened, Outcome, Why};
use crate::send::{Bounds, Exchange};

/// One operation under way.
#[derive(Debug)]
pub(crate) struct Course {
    asked: Asked,
    url: Url,
    limits: Limits,
    /// `None`: beyond what a clock can say.
    end: Option<Instant>,
    trace: Trace,
    /// Where accepted work is asked about.
    place: Option<Url>,
    last: Last,
}

/// What to do after a try.
#[derive(Debug)]
pub(crate) enum Next {
    Over(Outcome),
    Wait(Duration),
}

impl Course {
    /// Begins, or goes on with what was begun earlier: then a trace of it may be there.
    pub(crate) fn new(asked: Asked, url: Url, limits: Limits, trace: Trace, now: Instant) -> Self {
        let end = now.checked_add(limits.deadline);
        Self { asked, url, limits, end, trace, place: None, last: Last::Nothing }
    }

    /// Why no try may begin after this wait, if none may.
    pub(crate) fn stop(&self, now: Instant, wait: Duration) -> Option<Why> {
        if self.asked.attempts >= self.limits.attempts_max {
            return Some(Why::Attempts);
        }
        (self.left(now)? <= wait).then_some(Why::Deadline)
    }

    /// Begins a try, and says how long it may take, and its answer may be.
    pub(crate) fn begin_try(&mut self, now: Instant) -> Bounds {
        self.asked.attempts += 1;
        let Limits { try_timeout, answer_bytes_max, .. } = self.limits;
        let timeout = self.left(now).map_or(try_timeout, |left| left.min(try_timeout));
        Bounds { timeout, answer_bytes_max }
    }

    /// Where to ask about accepted work, in place of the request.
    pub(crate) const fn place(&self) -> Option<&Url> {
        self.place.as_ref()
    }

    /// Takes note of how a try ended.
    pub(crate) fn heard(&mut self, exchange: Exchange, now: SystemTime, dice: f64) -> Next {
        let verdict = match &exchange {
            Exchange::Answer(answer) if self.place.is_some() => judge_place(answer),
            Exchange::Answer(answer) => judge(answer),
            Exchange::NoAnswer(error) if error.is_too_large() => Verdict::Unclear(Why::AnswerTooLarge),
            Exchange::NoAnswer(error) => Verdict::Again(
                if error.is_sent() { Trace::Doubt } else { Trace::Nothing },
                if self.place.is_some() { Then::AskThere } else { Then::Send },
            ),
        };
        self.last = match exchange {
            Exchange::Answer(answer) => Last::Answer(answer),
            Exchange::NoAnswer(error) => Last::NoAnswer(error),
        };
        match verdict {
            Verdict::Happened => Next::Over(self.happened()),
            Verdict::DidNotHappen(why) => Next::Over(self.ended(why, Trace::Nothing)),
            Verdict::Refused(why) => Next::Over(self.ended(why, self.trace)),
            Verdict::Unclear(why) => Next::Over(self.ended(why, Trace::Doubt)),
            Verdict::Again(trace, then) => Next::Wait(self.again(trace, then, now, dice)),
        }
    }

    /// It is given up: what is known until now.
    pub(crate) fn give_up(&mut self, why: Why) -> Outcome {
        self.ended(why, self.trace)
    }

    /// It is given up in the middle of a try, which may have had its effect.
    pub(crate) fn break_off(&mut self, error: crate::send::NoAnswer) -> Outcome {
        self.last = Last::NoAnswer(error);
        self.ended(Why::Cancelled, Trace::Doubt)
    }

    fn again(&mut self, trace: Trace, then: Then, now: SystemTime, dice: f64) -> Duration {
        if trace == Trace::Doubt {
            self.trace = Trace::Doubt;
        }
        let is_at_once = then == Then::SendAtOnce;
        self.place = match then {
            Then::Send | Then::SendAtOnce => None,
            Then::AskAt(location) => self.within(&location),
            Then::AskThere => self.place.take(),
        };
        if is_at_once {
            return Duration::ZERO;
        }
        let headers = self.last.answer().map(|answer| &answer.headers);
        delay(self.asked.attempts, headers, &self.limits, now, dice)
    }

    /// Where to ask, if it is at the same server: credentials go nowhere else.
    fn within(&self, location: &str) -> Option<Url> {
        self.url.join(location).ok().filter(|url| url.origin() == self.url.origin())
    }

    fn left(&self, now: Instant) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(now))
    }

    fn happened(&mut self) -> Outcome {
        match self.take_last() {
            Last::Answer(answer) => {
                let replayed = answer.is_replayed();
                Outcome::Happened(Happened { answer: answer.told(), replayed, asked: self.asked.clone() })
            }
            // Only an answer can say that it happened.
            last => self.told(Why::Failed, last, Trace::Doubt),
        }
    }

    fn ended(&mut self, why: Why, trace: Trace) -> Outcome {
        let last = match self.take_last() {
            Last::Answer(answer) => Last::Answer(Answer::told(answer)),
            last => last,
        };
        self.told(why, last, trace)
    }

    fn told(&self, why: Why, last: Last, trace: Trace) -> Outcome {
        let asked = self.asked.clone();
        match trace {
            Trace::Nothing => Outcome::DidNotHappen(DidNotHappen { why, last, asked }),
            Trace::Doubt => Outcome::MayHaveHappened(MayHaveHappened { why, last, asked }),
        }
    }

    fn take_last(&mut self) -> Last {
        std::mem::replace(&mut self.last, Last::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
    use oncegate_core::problem::{self, Code};
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::send::NoAnswer;

    const ACCEPTED: &str = "{\"id\":\"op_1\",\"state\":\"pending\",\"retry_after_s\":1}";

    /// What a try may meet.
    #[derive(Clone, Debug)]
    enum Met {
        NoConnection,
        Silence,
        TooLarge,
        /// From anybody.
        Status(u16),
        /// From the API, which does not know what it did.
        Undecided(u16),
        /// From the API, which says that it did nothing.
        Released(u16),
        /// From the record.
        Kept(u16),
        Problem(Code),
        /// 202 of the gateway's, and where to ask.
        Accepted,
        /// The same, and where to ask was lost on the way.
        AcceptedNowhere,
        /// 202 of an API's own, and where to ask.
        OwnAccepted,
        /// At that place.
        State(&'static str),
    }

    impl Met {
        fn any() -> impl Strategy<Value = Self> {
            let status = || {
                select(vec![
                    200, 201, 202, 204, 303, 307, 400, 402, 403, 408, 409, 425, 429, 500, 501, 503, 505,
                ])
            };
            let places =
                vec!["pending", "in_progress", "unknown", "completed", "failed_retryable", "expired"];
            prop_oneof![
                Just(Self::NoConnection),
                Just(Self::Silence),
                Just(Self::TooLarge),
                Just(Self::Accepted),
                Just(Self::AcceptedNowhere),
                Just(Self::OwnAccepted),
                status().prop_map(Self::Status),
                status().prop_map(Self::Undecided),
                status().prop_map(Self::Released),
                status().prop_map(Self::Kept),
                select(Code::ALL.to_vec()).prop_map(Self::Problem),
                select(places).prop_map(Self::State),
            ]
        }

        /// It is proved that this did nothing, and nothing is left on its way.
        fn did_nothing(&self) -> bool {
            match self {
                Self::NoConnection | Self::Released(_) => true,
                Self::Status(status) => matches!(status, 400..=499 | 501 | 505) && *status != 408,
                Self::Problem(code) => {
                    let doubtful = [
                        "in_progress",
                        "outcome_unknown",
                        "not_cancellable",
                        "upstream_failed",
                        "answer_not_kept",
                    ];
                    !doubtful.contains(&code.name())
                }
                Self::Silence
                | Self::TooLarge
                | Self::Undecided(_)
                | Self::Kept(_)
                | Self::Accepted
                | Self::AcceptedNowhere
                | Self::OwnAccepted
                | Self::State(_) => false,
            }
        }

        /// The record says that the operation did not happen.
        fn is_the_record_s_no(&self) -> bool {
            match self {
                Self::Kept(status) => matches!(status, 400..=499),
                Self::Problem(code) => ["not_started", "cancelled"].contains(&code.name()),
                _ => false,
            }
        }

        fn exchange(&self) -> Exchange {
            let line = |name: &'static str, value: &'static str| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            };
            let answer = |status: u16, headers: Vec<(HeaderName, HeaderValue)>, body: String| {
                let status = StatusCode::from_u16(status).unwrap();
                Exchange::Answer(Answer {
                    status,
                    headers: HeaderMap::from_iter(headers),
                    body: Some(Bytes::from(body)),
                })
            };
            match self {
                Self::NoConnection => Exchange::NoAnswer(NoAnswer::of_nobody()),
                Self::Silence => Exchange::NoAnswer(NoAnswer::given_up()),
                Self::TooLarge => Exchange::NoAnswer(NoAnswer::too_large()),
                Self::Status(status) => answer(*status, vec![], String::new()),
                Self::Undecided(status) => {
                    answer(*status, vec![line("idempotency-state", "unknown")], String::new())
                }
                Self::Released(status) => {
                    answer(*status, vec![line("idempotency-state", "failed_retryable")], String::new())
                }
                Self::Kept(status) => {
                    answer(*status, vec![line("idempotency-expires", "later")], String::new())
                }
                Self::Problem(code) => {
                    let body = String::from_utf8(problem::Problem::new(*code, "").to_json()).unwrap();
                    answer(code.status(), vec![line("content-type", problem::CONTENT_TYPE)], body)
                }
                Self::Accepted => {
                    let place = line("location", "/.oncegate/operations/op_1");
                    answer(202, vec![place], ACCEPTED.to_owned())
                }
                Self::AcceptedNowhere => answer(202, vec![], ACCEPTED.to_owned()),
                Self::OwnAccepted => answer(
                    202,
                    vec![line("location", "/jobs/1")],
                    "{\"id\":1,\"state\":\"pending\"}".to_owned(),
                ),
                Self::State(state) => {
                    answer(200, vec![], format!("{{\"id\":\"op_1\",\"state\":\"{state}\"}}"))
                }
            }
        }
    }

    /// What was met, as far as it was heard, and what became of it.
    fn run(all: &[Met], limits: Limits, trace: Trace) -> (usize, Outcome) {
        let now = Instant::now();
        let asked = Asked { key: "k".parse().unwrap(), name: None, attempts: 0 };
        let url = Url::parse("http://api.example/payments").unwrap();
        let mut course = Course::new(asked, url, limits, trace, now);
        let mut wait = Duration::ZERO;
        for (heard, met) in all.iter().enumerate() {
            if let Some(why) = course.stop(now, wait) {
                return (heard, course.give_up(why));
            }
            course.begin_try(now);
            match course.heard(met.exchange(), SystemTime::now(), 0.5) {
                Next::Over(outcome) => return (heard + 1, outcome),
                Next::Wait(span) => wait = span,
            }
        }
        (all.len(), course.give_up(Why::Cancelled))
    }

    fn plenty() -> Limits {
        Limits { deadline: Duration::MAX, ..Limits::default() }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn it_did_not_happen_only_where_no_try_can_have_done_it_or_the_record_says_so(
            all in prop::collection::vec(Met::any(), 0..8),
            is_resumed: bool,
        ) {
            let trace = if is_resumed { Trace::Doubt } else { Trace::Nothing };
            let (heard, outcome) = run(&all, plenty(), trace);
            if let Outcome::DidNotHappen(_) = outcome {
                let heard = &all[..heard];
                let is_proved = !is_resumed && heard.iter().all(Met::did_nothing);
                prop_assert!(is_proved || heard.last().is_some_and(Met::is_the_record_s_no), "{heard:?}: {outcome:?}");
            }
        }

        #[test]
        fn it_happened_only_where_an_answer_says_so(all in prop::collection::vec(Met::any(), 0..8)) {
            let (heard, outcome) = run(&all, plenty(), Trace::Nothing);
            if let Outcome::Happened(happened) = outcome {
                let said = &all[heard - 1];
                let is_success = matches!(said, Met::Kept(200..=399) | Met::Status(200..=299) | Met::OwnAccepted | Met::State(_));
                prop_assert!(is_success, "{all:?}: {happened:?}");
                prop_assert_eq!(happened.asked.attempts as usize, heard);
            }
        }

        #[test]
        fn there_are_never_more_attempts_than_allowed(
            all in prop::collection::vec(Met::any(), 0..8),
            attempts_max in 0_u32..5,
        ) {
            let (_, outcome) = run(&all, Limits { attempts_max, ..plenty() }, Trace::Nothing);
            prop_assert!(outcome.asked().attempts <= attempts_max);
        }
    }

    #[test]
    fn a_wait_that_would_end_after_the_deadline_is_not_begun() {
        let now = Instant::now();
        let asked = Asked { key: "k".parse().unwrap(), name: None, attempts: 0 };
        let limits = Limits { deadline: Duration::from_secs(10), ..Limits::default() };
        let url = Url::parse("http://api.example/").unwrap();
        let mut course = Course::new(asked, url, limits, Trace::Nothing, now);
        let seconds = Duration::from_secs;
        assert_eq!(course.stop(now, seconds(9)), None);
        assert_eq!(course.stop(now, seconds(10)), Some(Why::Deadline));
        assert_eq!(course.stop(now + seconds(5), seconds(5)), Some(Why::Deadline));
        assert_eq!(
            course.begin_try(now + seconds(8)).timeout,
            seconds(2),
            "a try ends with the operation's time"
        );
        assert_eq!(course.begin_try(now + seconds(99)).timeout, Duration::ZERO);
    }
}
