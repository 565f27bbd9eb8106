//! What a request costs, counted: a regression fails without a clock.
//!
//! A process of its own runs the gateway on one thread, its client and its upstream on others, one request at a time. What that one
//! thread does is the same on every machine and under every load: allocations (counted by an allocator), instructions (by callgrind),
//! calls to the system (by strace). Commits are the engine's own count. A budget is a little above what was counted when it was last
//! changed; who lowers a cost lowers its budget in the same commit.
//!
//! Instructions are those of a build for tests, SHA-256 in software included (valgrind has no other): they say "more than before", and
//! nothing about time.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod run;

use std::path::Path;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};
use oncegate_test_servers::programs;

use run::{Asked, Counted};

/// What one request of a kind may cost.
struct Budget {
    asked: Asked,
    store: &'static str,
    allocations: u64,
    allocated_bytes: u64,
    /// Not where the first thread waits for a disk: valgrind is slow enough for the store to be given up.
    instructions: Option<u64>,
    /// Reads and writes of sockets, waits for them, and whatever wakes another thread.
    system_calls: u64,
    commits: u64,
}

const BUDGETS: [Budget; 4] = [
    Budget {
        asked: Asked::Fresh,
        store: "memory:",
        allocations: 66,
        allocated_bytes: 38_000,
        instructions: Some(530_000),
        // One of them draws the lease's token: never ahead, or two clones of a snapshot would share it.
        system_calls: 11,
        commits: 2,
    },
    Budget {
        asked: Asked::Fresh,
        store: "sqlite://",
        allocations: 66,
        allocated_bytes: 38_000,
        instructions: None,
        system_calls: 14,
        commits: 2,
    },
    Budget {
        asked: Asked::Replay,
        store: "sqlite://",
        allocations: 36,
        allocated_bytes: 14_500,
        instructions: Some(275_000),
        system_calls: 4,
        commits: 0,
    },
    Budget {
        asked: Asked::Unprotected,
        store: "memory:",
        allocations: 21,
        allocated_bytes: 17_500,
        instructions: Some(182_000),
        system_calls: 7,
        commits: 0,
    },
];

fn main() -> ExitCode {
    if let Some(asked) = Asked::of_environment() {
        let counted = run::counting(asked, &std::env::var(run::STORE).unwrap_or_default());
        println!("{}", counted.line());
        return ExitCode::SUCCESS;
    }
    let trials = BUDGETS.iter().flat_map(|budget| {
        let name = |what: &str| format!("{}::{what}", budget.name());
        let mut trials = vec![
            Trial::test(name("allocations_and_commits"), || allocations_and_commits(budget)),
            Trial::test(name("system_calls"), || system_calls(budget)),
        ];
        let counted = budget.instructions;
        trials.extend(
            counted.map(|most| Trial::test(name("instructions"), move || instructions(budget, most))),
        );
        trials
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

impl Budget {
    fn name(&self) -> String {
        let store = self.store.split(':').next().unwrap_or_default();
        format!("{}_on_{store}", self.asked.name())
    }

    /// The process that is counted, under `tool` if there is one.
    fn process(&self, tool: &[&str], folder: &Path, requests: u32) -> Command {
        let own = std::env::current_exe().unwrap();
        let mut command = match tool {
            [] => Command::new(own),
            [program, options @ ..] => {
                let mut command = Command::new(programs::must(programs::find(program), program));
                command.args(options).arg(own);
                command
            }
        };
        let store = match self.store {
            "sqlite://" => format!("sqlite://{}", folder.join("budget.db").display()),
            store => store.to_owned(),
        };
        command.env(run::ASKED, self.asked.name()).env(run::STORE, store);
        command.env(run::REQUESTS, requests.to_string());
        command
    }
}

fn counted(command: &mut Command) -> Counted {
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {words}", output.status);
    Counted::read(&String::from_utf8_lossy(&output.stdout)).unwrap_or_else(|| panic!("{output:?}"))
}

fn within(what: &str, counted: u64, budget: u64) -> Result<(), Failed> {
    eprintln!("{what}: {counted} a request, of {budget}");
    if counted <= budget {
        return Ok(());
    }
    Err(format!("{what}: {counted} a request, and the budget is {budget}").into())
}

fn allocations_and_commits(budget: &Budget) -> Result<(), Failed> {
    let folder = tempfile::tempdir().unwrap();
    let counted = counted(&mut budget.process(&[], folder.path(), 200));
    within("allocations", counted.allocations, budget.allocations)?;
    within("allocated bytes", counted.allocated_bytes, budget.allocated_bytes)?;
    if counted.commits != budget.commits {
        return Err(format!("{} commits a request, and not {}", counted.commits, budget.commits).into());
    }
    Ok(())
}

/// Counted between two calls of one function, on its own thread.
fn instructions(budget: &Budget, most: u64) -> Result<(), Failed> {
    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("callgrind");
    let to = format!("--callgrind-out-file={}", written.display());
    let requests = 100;
    let tool =
        ["valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*measured_part*", &to];
    let _counted = counted(&mut budget.process(&tool, folder.path(), requests));
    let written = std::fs::read_to_string(&written)?;
    let total = written.lines().find_map(|line| line.strip_prefix("summary: ")).ok_or("no summary")?;
    let total: u64 = total.trim().parse()?;
    if total < u64::from(requests) * 1_000 {
        return Err(format!("only {total} instructions were counted: the tool has lost the thread").into());
    }
    within("instructions", total / u64::from(requests), most)
}

/// What more requests add, on the gateway's thread, which is the process's first.
fn system_calls(budget: &Budget) -> Result<(), Failed> {
    let calls = |requests| -> Result<u64, Failed> {
        let folder = tempfile::tempdir().unwrap();
        let written = folder.path().join("strace");
        let to = written.display().to_string();
        let tool = ["strace", "--follow-forks", "--output-separately", "--quiet=all", "-o", &to];
        let counted = counted(&mut budget.process(&tool, folder.path(), requests));
        let of_gateway = folder.path().join(format!("strace.{}", counted.process));
        Ok(std::fs::read_to_string(of_gateway)?.lines().count() as u64)
    };
    let (few, many) = (calls(100)?, calls(300)?);
    // A worker's pass that falls into one of the two and not into the other is no request's.
    within("calls to the system", (many.saturating_sub(few) + 100) / 200, budget.system_calls)
}
