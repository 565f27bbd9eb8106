//! Memory has a bound: ten times the lines do not take ten times the memory.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use oncegate::Store as _;
use oncegate_store::{Outcome, Write};
use rustix::pipe::fcntl_setpipe_size;

use crate::desk::Desk;
use crate::ledger::{MORNING, created, paid};

/// Lines of the export; every third has a record.
const MANY: u32 = 300_000;
const FEW: u32 = 30_000;
/// What is in memory at most, whatever is compared: the sorter's buffer of 32 MiB, the store's own cache of 2 MiB, and what every
/// command takes.
const MOST_KIB: u64 = 104 << 10;
/// What ten times the lines may take more: the few do not fill the sorter's buffer, the many fill it more than twice.
/// Counted: 46.5 to 48 MiB.
const MORE_KIB: u64 = 52 << 10;

#[test]
fn ten_times_the_lines_stay_within_the_bound() {
    let desk = Desk::empty();
    fill(&desk);
    let few = peak_kib(&desk, FEW);
    let many = peak_kib(&desk, MANY);
    println!("{FEW} lines: {few} KiB; {MANY} lines: {many} KiB");
    assert!(many <= MOST_KIB, "{many} KiB, and {MOST_KIB} KiB are stated");
    assert!(many <= few + MORE_KIB, "{} KiB more, and {MORE_KIB} KiB are stated", many - few);
}

/// Payments, each paid; and an export in which one in a thousand is missing, and two in three are nobody's.
fn fill(desk: &Desk) {
    let url = format!("sqlite://{}", desk.path().join("oncegate.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let record = |number: u32| {
        let at = MORNING.plus(Duration::from_millis(u64::from(number)));
        Write::insert(Arc::new(created(at, paid(&key(number), number))))
    };
    let numbers: Vec<_> = (0..MANY).step_by(3).collect();
    runtime.block_on(async {
        let store = oncegate::open(&url).await.unwrap();
        for numbers in numbers.chunks(5_000) {
            let batch: Vec<_> = numbers.iter().copied().map(record).collect();
            let outcomes = store.apply(&batch).await.unwrap();
            assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied));
        }
    });
    for (name, lines) in [("few.csv", FEW), ("many.csv", MANY)] {
        let mut export = "idempotency_key,charge,amount\n".to_owned();
        // Another order than the records'.
        for number in (0..lines).rev().filter(|number| number % 1000 != 0) {
            writeln!(export, "{},ch_{number:012},{number}", key(number)).unwrap();
        }
        fs::write(desk.path().join(name), export).unwrap();
    }
}

fn key(number: u32) -> String {
    format!("{:08x}-6d1c-4a0e-9b1f-{number:012x}", number.wrapping_mul(2_654_435_761))
}

/// The child's own peak. It is read when the report is out and before it ends: its stderr is full, so that it cannot say the rest.
fn peak_kib(desk: &Desk, lines: u32) -> u64 {
    let (name, until) = match lines {
        FEW => ("few.csv", "2026-03-02T09:00:30Z"),
        _ => ("many.csv", "2026-03-02T10:00:00Z"),
    };
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let room = fcntl_setpipe_size(&writer, 4096).unwrap();
    writer.write_all(&vec![b'.'; room]).unwrap();
    let line = format!(
        "compare --provider-export {name} --since 2026-03-02T09:00:00Z --until {until} --slack 0s --amount-column amount \
         --amount-pointer /amount --reference-column charge --report json --store sqlite://oncegate.db"
    );
    let mut child = desk.command(&line).stdout(Stdio::piped()).stderr(writer).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let summary = out.find(|line| line.starts_with("\"summary\"")).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    assert_eq!(child.wait().unwrap().code(), Some(5), "{summary}");
    let missing = lines / 3000;
    let agreed = lines / 3 - missing;
    let foreign = lines - lines / 1000 - agreed;
    for (name, count) in
        [("completed_not_charged", missing), ("agreed", agreed), ("charged_not_completed", foreign)]
    {
        assert!(summary.contains(&format!("\"{name}\":{count}")), "{name} is not {count}: {summary}");
    }
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    peak.split_whitespace().nth(1).unwrap().parse().unwrap()
}
