//! Clients: raw HTTP/1.1 over kept connections, by one thread and one epoll, so that the load takes as little of the machine as it can.
//!
//! A request is a template in which only the key changes. Two ways to send: *closed*, where each connection asks again as soon as it is answered; and
//! *at a rate*, where requests are due at fixed moments and a latency counts from the moment a request was **due**, whether or not a connection was free
//! then: a stall is paid for by all who should have been served during it (no coordinated omission).

mod connection;
mod keys;
mod timer;
mod wire;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use crate::Outcome;
use connection::{Answered, Connection};
pub(crate) use keys::Keys;
use keys::Picker;
use timer::Timer;
use wire::Template;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Keys that were never seen.
    Fresh,
    /// Keys that were settled before, over and over.
    Replay,
    /// 89 % fresh keys, 10 % replays, and 1 % second comers of a race.
    Mixed,
    /// What no route protects.
    Get,
}

/// How requests follow one another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Each connection asks again when it was answered.
    Closed,
    /// So many a second, whatever the answers do.
    Rate(f64),
}

/// When it is enough.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// After a while that does not count, for so long.
    Elapsed { warm: Duration, counted: Duration },
    /// After so many requests, all of which count.
    Sent(u64),
}

/// One stretch of load.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Connections are spread over them.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) connections: usize,
    pub(crate) kind: Kind,
    pub(crate) pace: Pace,
    pub(crate) until: Until,
    pub(crate) request_bytes: usize,
    pub(crate) answer_bytes: usize,
    /// The keys that are replayed, by number.
    pub(crate) settled: Range<u64>,
    /// Ours mark their replays, and one answer that is not as it should be ends the run. A peer's failures are counted.
    pub(crate) is_ours: bool,
    /// Where requests go, if not to `/payments`.
    pub(crate) path: Option<&'static str>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    /// Answers that were refusals or errors; they are no requests that were served.
    pub(crate) failures: u64,
    /// In the order of the answers.
    pub(crate) latencies: Vec<Duration>,
}

impl Load {
    /// Sends it. `mark` is called when counting begins and when it ends, to read meters.
    pub(crate) fn run(&self, keys: &mut Keys, mark: &mut dyn FnMut() -> Outcome) -> Outcome<Sample> {
        Running::start(self, keys)?.finish(mark)
    }
}

struct Running<'a> {
    load: &'a Load,
    picker: Picker<'a>,
    template: Template,
    epoll: rustix::fd::OwnedFd,
    timer: Timer,
    connections: Vec<Connection>,
    idle: VecDeque<usize>,
    /// When the first was due, for a rate; how many were sent.
    begun: Instant,
    sent: u64,
    is_counting: bool,
    sample: Sample,
}

/// The timer's place among the connections.
const TIMER: u64 = u64::MAX;

impl<'a> Running<'a> {
    fn start(load: &'a Load, keys: &'a mut Keys) -> Outcome<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = Timer::new()?;
        epoll::add(&epoll, timer.file(), epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
        let mut connections = Vec::with_capacity(load.connections);
        for (place, address) in (0_u64..).zip(load.addresses.iter().cycle()).take(load.connections) {
            let connection = Connection::open(*address, load.answer_bytes)?;
            let data = epoll::EventData::new_u64(place);
            epoll::add(&epoll, connection.file(), data, epoll::EventFlags::IN)?;
            connections.push(connection);
        }
        Ok(Self {
            load,
            picker: Picker::new(load.kind, load.settled.clone(), keys),
            template: Template::new(load),
            epoll,
            timer,
            idle: (0..connections.len()).collect(),
            connections,
            begun: Instant::now(),
            sent: 0,
            is_counting: false,
            sample: Sample::default(),
        })
    }

    fn finish(mut self, mark: &mut dyn FnMut() -> Outcome) -> Outcome<Sample> {
        if let Until::Elapsed { warm, .. } = self.load.until
            && !warm.is_zero()
        {
            let end = self.begun + warm;
            self.go_on(&|_| Instant::now() >= end)?;
        }
        mark()?;
        let counted_from = Instant::now();
        self.is_counting = true;
        match self.load.until {
            Until::Elapsed { counted, .. } => {
                let end = counted_from + counted;
                self.go_on(&|_| Instant::now() >= end)?;
            }
            Until::Sent(count) => self.go_on(&|running| running.sent >= count)?,
        }
        if matches!(self.load.until, Until::Sent(_)) {
            self.drain()?;
        }
        self.sample.seconds = counted_from.elapsed().as_secs_f64();
        mark()?;
        self.is_counting = false;
        self.drain()?;
        Ok(self.sample)
    }

    fn go_on(&mut self, is_over: &dyn Fn(&Self) -> bool) -> Outcome {
        while !is_over(self) {
            self.send_what_is_due()?;
            self.wait()?;
        }
        Ok(())
    }

    /// Answers that are still on their way.
    fn drain(&mut self) -> Outcome {
        while self.idle.len() < self.connections.len() {
            self.wait()?;
        }
        Ok(())
    }

    fn send_what_is_due(&mut self) -> Outcome {
        let left = if let Until::Sent(count) = self.load.until { count - self.sent } else { u64::MAX };
        for _ in 0..left {
            let now = Instant::now();
            let due = match self.load.pace {
                Pace::Closed => now,
                #[expect(clippy::cast_precision_loss, reason = "a count of requests is far below 2^52")]
                Pace::Rate(per_s) => self.begun + Duration::from_secs_f64(self.sent as f64 / per_s),
            };
            if due > now {
                self.timer.ring_in(due - now)?;
                return Ok(());
            }
            let Some(place) = self.idle.pop_front() else { return Ok(()) };
            let ask = self.picker.next();
            let connection = &mut self.connections[place];
            connection.send(self.template.with_key(ask.key), due, ask.may_clash)?;
            self.sent += 1;
        }
        Ok(())
    }

    fn wait(&mut self) -> Outcome {
        let mut events = Vec::with_capacity(256);
        // Woken now and then, so that the end is seen also when nobody answers.
        let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&moment))?;
        for event in events {
            let place = event.data.u64();
            if place == TIMER {
                self.timer.hear()?;
                continue;
            }
            let place = usize::try_from(place)?;
            let connection = &mut self.connections[place];
            let Some(answered) = connection.read(self.load)? else { continue };
            self.idle.push_back(place);
            match answered {
                _ if !self.is_counting => {}
                Answered::Well(latency) => {
                    self.sample.requests += 1;
                    self.sample.latencies.push(latency);
                }
                Answered::Badly => self.sample.failures += 1,
            }
        }
        Ok(())
    }
}
