//! Compares layouts: throughput by batch size, what it loses from an empty file to a full one, bytes per key.

use std::path::Path;

use crate::Outcome;
use crate::bare::{Bare, Durability};
use crate::cost::{Meter, Turn, column};
use crate::fill;
use crate::layouts::Layout;
use crate::measure::{Summary, interleave};
use crate::options::Options;
use crate::traffic::{self, Load};

/// A layout on one file. The filled file stays open between turns, as in a long-running process.
struct Contender {
    layout: Layout,
    file: File,
}

enum File {
    Filled(Box<Bare>),
    /// Made anew for every turn, or it would not stay empty.
    Empty,
}

/// Whether each layout also runs on an empty file, to see what the rows cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    Measured,
    Skipped,
}

/// Measures `layouts` and prints one table per batch size. Speeds are ratios to the first layout's filled file.
pub(crate) fn run(options: &Options, layouts: &[Layout], growth: Growth) -> Outcome {
    let admitted: Vec<Layout> =
        layouts.iter().copied().filter(|layout| options.admits(layout.name)).collect();
    let mut contenders = Vec::new();
    println!("| layout | bytes per completed key |\n| --- | --- |");
    for &layout in &admitted {
        let path = fill::filled(options, layout)?;
        println!("| {} | {} |", layout.name, bytes_per_key(&path, layout)?);
        let bare = Bare::open(&path, layout, Durability::Full)?;
        contenders.push(Contender { layout, file: File::Filled(Box::new(bare)) });
    }
    if growth == Growth::Measured {
        contenders.extend(admitted.iter().map(|&layout| Contender { layout, file: File::Empty }));
    }
    for &batch in &options.batches {
        let load = Load { batch, requests: Options::requests_per_turn(batch) };
        let turns = interleave(options.rounds, &mut contenders, |contender| turn(contender, options, load))?;
        print_table(&admitted, load, &turns);
    }
    Ok(())
}

/// `turns` holds the filled files first, then the empty ones if there are any.
fn print_table(layouts: &[Layout], load: Load, turns: &[Vec<Turn>]) {
    let (filled, empty) = turns.split_at(layouts.len());
    let speed = |turns: &Vec<Turn>| column(turns, |turn| turn.requests_per_s);
    let cpu = |turns: &Vec<Turn>| Summary::of(&column(turns, |turn| turn.cpu_us));
    let Load { batch, .. } = load;
    println!("\n| batch {batch} | speed | CPU µs | KiB written | empty: speed | empty: CPU µs |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (index, (layout, turns)) in layouts.iter().zip(filled).enumerate() {
        let ratio = Summary::of_ratio(&speed(turns), &speed(&filled[0]));
        let written = Summary::of(&column(turns, |turn| turn.written_kib));
        print!("| {} | {ratio} | {} | {written} |", layout.name, cpu(turns));
        match empty.get(index) {
            Some(empty) => {
                println!(" {} | {} |", Summary::of_ratio(&speed(empty), &speed(&filled[0])), cpu(empty));
            }
            None => println!(" | |"),
        }
    }
}

fn turn(contender: &mut Contender, options: &Options, load: Load) -> Outcome<Turn> {
    let mut maker = fill::fresh_rows();
    Meter::around(|| match &mut contender.file {
        File::Filled(bare) => traffic::run(&mut **bare, &mut maker, load),
        File::Empty => {
            let path = fill::empty(options, contender.layout, "empty")?;
            crate::bare::run_at(&path, contender.layout, &mut maker, load)
        }
    })
}

/// Over the rows that are there: earlier measurements have added some.
fn bytes_per_key(path: &Path, layout: Layout) -> Outcome<i64> {
    let bare = Bare::open(path, layout, Durability::Full)?;
    let rows: i64 = bare.connection().query_row("SELECT count(*) FROM record", [], |row| row.get(0))?;
    Ok(bare.bytes_used()? / rows.max(1))
}
