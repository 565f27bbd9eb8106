//! Rings when the next request is due. `epoll` alone counts in milliseconds, which is as long as a commit.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::Outcome;

pub(super) struct Timer(OwnedFd);

impl Timer {
    pub(super) fn new() -> Outcome<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Once.
    pub(super) fn ring_in(&self, after: Duration) -> Outcome {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Nothing at all would mean never.
        let after = after.max(Duration::from_nanos(1));
        let after =
            Timespec { tv_sec: i64::try_from(after.as_secs())?, tv_nsec: after.subsec_nanos().into() };
        let when = Itimerspec { it_interval: zero, it_value: after };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &when)?;
        Ok(())
    }

    /// Takes note that it rang.
    pub(super) fn hear(&self) -> Outcome {
        let mut count = [0; 8];
        match rustix::io::read(&self.0, &mut count) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
