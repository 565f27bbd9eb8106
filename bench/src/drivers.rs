//! The same traffic through other doors: sqlx instead of rusqlite, fjall instead of SQLite.
//!
//! Each is behind a cargo feature of its name, so that the ordinary build stays lean:
//! `cargo run --release -p oncegate-bench --features sqlx,fjall -- drivers`.

#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "sqlx")]
mod sqlx;

use crate::Outcome;
use crate::bare::{Bare, Durability};
use crate::cost::{Meter, column};
use crate::fill;
use crate::layouts::Layout;
use crate::measure::{Summary, interleave};
use crate::options::Options;
use crate::traffic::{self, Load, Subject};

/// One door.
struct Contender {
    name: &'static str,
    subject: Box<dyn Subject>,
}

/// Measures every door that is compiled in; the bare rusqlite loop is the base.
pub(crate) fn run(options: &Options) -> Outcome {
    let mut contenders = contenders(options, options.layout)?;
    for &batch in &options.batches {
        let load = Load { batch, requests: Options::requests_per_turn(batch) };
        let turns = interleave(options.rounds, &mut contenders, |contender| {
            Meter::around(|| traffic::run(&mut *contender.subject, &mut fill::fresh_rows(), load))
        })?;
        let speeds: Vec<Vec<f64>> =
            turns.iter().map(|turns| column(turns, |turn| turn.requests_per_s)).collect();
        println!(
            "\n| batch {batch} | speed, ratio to rusqlite | CPU µs | KiB written |\n| --- | --- | --- | --- |"
        );
        for ((contender, speed), turns) in contenders.iter().zip(&speeds).zip(&turns) {
            let ratio = Summary::of_ratio(speed, &speeds[0]);
            let cpu = Summary::of(&column(turns, |turn| turn.cpu_us));
            let written = Summary::of(&column(turns, |turn| turn.written_kib));
            println!("| {} | {ratio} | {cpu} | {written} |", contender.name);
        }
    }
    Ok(())
}

fn contenders(options: &Options, layout: Layout) -> Outcome<Vec<Contender>> {
    let rusqlite = fill::filled_copy(options, layout, "rusqlite")?;
    #[cfg_attr(
        not(any(feature = "sqlx", feature = "fjall")),
        expect(unused_mut, reason = "nothing to add without a feature")
    )]
    let mut contenders = vec![Contender {
        name: "rusqlite",
        subject: Box::new(Bare::open(&rusqlite, layout, Durability::Full)?),
    }];
    #[cfg(feature = "sqlx")]
    contenders.push(Contender {
        name: "sqlx",
        subject: Box::new(sqlx::Sqlx::open(&fill::filled_copy(options, layout, "sqlx")?, layout)?),
    });
    #[cfg(feature = "fjall")]
    contenders.push(Contender { name: "fjall", subject: Box::new(fjall::Fjall::filled(options)?) });
    Ok(contenders)
}
