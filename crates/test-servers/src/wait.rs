//! Waiting for what nobody announces: the state of a server, of another process, of something that only counts.
//!
//! Whatever gives a signal is awaited where it does, and not by these. Here one asks again and again; in between others get their
//! turn, so that no test is as slow as a pause that somebody once chose. Whoever has asked a thousand times in vain leaves the processor alone for a
//! millisecond each time: two tests that ask without end take both cores of a small machine, and what they wait for, a disk say, may need one. The deadline is
//! reached only if something is broken, and then the panic says what never came to be.

use std::time::{Duration, Instant};

/// How long anything may take. Generous: a busy machine must never reach it.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Asks until something holds, in a thread that may wait.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let mut waiting = Waiting::until(what);
    while !holds() {
        waiting.go_on();
        std::thread::yield_now();
    }
}

/// Asks until something holds, in a task.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    until_some(what, async || holds().await.then_some(())).await;
}

/// Asks until there is an answer, in a task.
pub async fn until_some<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let mut waiting = Waiting::until(what);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        waiting.go_on();
        tokio::task::yield_now().await;
    }
}

/// So often one asks without a pause.
const AT_ONCE: u32 = 1_000;

struct Waiting<'a> {
    what: &'a str,
    asked: u32,
    end: Instant,
}

impl<'a> Waiting<'a> {
    fn until(what: &'a str) -> Self {
        Self { what, asked: 0, end: Instant::now() + PATIENCE }
    }

    #[track_caller]
    fn go_on(&mut self) {
        assert!(Instant::now() < self.end, "waited {} s in vain until {}", PATIENCE.as_secs(), self.what);
        self.asked = self.asked.saturating_add(1);
        if self.asked > AT_ONCE {
            // Not by the runtime's clock, which may stand still, or not be there.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "waited 60 s in vain until pigs fly")]
    fn a_wait_that_is_over_says_what_never_came_to_be() {
        Waiting { what: "pigs fly", asked: 0, end: Instant::now() }.go_on();
    }

    /// On one thread, what is waited for can only happen if the one who asks lets it.
    #[test]
    fn whoever_asks_lets_others_go_first() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime starts");
        let answer = runtime.block_on(async {
            let other = tokio::spawn(std::future::ready(()));
            until("the other task has ended", async || other.is_finished()).await;
            let mut asked = 0;
            until_some("it was asked three times", async || {
                asked += 1;
                (asked == 3).then_some(asked)
            })
            .await
        });
        assert_eq!(answer, 3);
    }
}
