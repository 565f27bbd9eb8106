//! What 2,000 slow senders of one address cost the clients of another.
//!
//! Each slow sender announces a body and sends one byte per second, until the gateway refuses it
//! with 408, which it does several times within a round. It comes again a second later, so the
//! attack never ends by itself. Meanwhile paced clients of another address pay, at a fraction of
//! the saturating rate, and their latencies count from the moment a request was due. Rounds with
//! and without the slow senders take turns. The run fails if the p99 of the paying clients is more
//! than twice what it is without them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use crate::Outcome;
use crate::fill;
use crate::gateway::{serve_with, upstream};
use crate::measure::{Summary, interleave, percentile};
use crate::options::Options;
use crate::suite::load::{Keys, Kind, Load, Pace, Until};

const SENDERS: usize = 2_000;
/// Between two bytes of a slow sender, and before it comes again.
const PAUSE: Duration = Duration::from_secs(1);
const CONNECTIONS: usize = 64;
/// Far below what saturates the machine: the question is what a well-behaved client waits for.
const RATE_PER_S: f64 = 1_000.0;
const WARM: Duration = Duration::from_secs(3);
const COUNTED: Duration = Duration::from_secs(15);
/// So short that refusals, and the senders that come again, are part of what is counted.
const LISTEN: &str = "body_timeout = \"5s\"";
/// The p99 beside the slow senders, as a multiple of the p99 without them.
const RATIO_MAX: f64 = 2.0;

pub(crate) fn run(options: &Options) -> Outcome {
    let file = options.dir.join("slow-senders.db");
    fill::remove(&file)?;
    let gateway = serve_with(upstream::start()?, &format!("sqlite://{}", file.display()), LISTEN)?;
    let mut keys = Keys::new();
    let mut refused_min = usize::MAX;
    let mut contenders = [("alone", false), ("beside 2,000 slow senders", true)];
    let turns = interleave(options.rounds, &mut contenders, |(_, is_attacked)| {
        let attack = is_attacked.then(|| Attack::start(gateway.address)).transpose()?;
        let latencies = paced(gateway.address, &mut keys)?;
        if let Some(attack) = attack {
            refused_min = refused_min.min(attack.end()?);
        }
        Ok(latencies)
    })?;
    println!(
        "| {RATE_PER_S} fresh keys/s on {CONNECTIONS} connections, SQLite | p50 ms | p99 ms | p99 : alone |"
    );
    println!("| --- | --- | --- | --- |");
    let series = |turns: &[Latencies], of: fn(&Latencies) -> f64| turns.iter().map(of).collect::<Vec<_>>();
    let alone = series(&turns[0], |turn| turn.p99_ms);
    let attacked = Summary::of_ratio(&series(&turns[1], |turn| turn.p99_ms), &alone);
    for ((name, _), turns) in contenders.iter().zip(&turns) {
        let p99 = series(turns, |turn| turn.p99_ms);
        let [p50, ratio] = [Summary::of(&series(turns, |turn| turn.p50_ms)), Summary::of_ratio(&p99, &alone)];
        println!("| {name} | {p50} | {} | {ratio} |", Summary::of(&p99));
    }
    gateway.end();
    fill::remove(&file)?;
    println!(
        "\np99 beside slow senders : p99 alone = {attacked}; at most {RATIO_MAX:.2}; at least {refused_min} refusals (408) per round"
    );
    verdict(attacked, refused_min)
}

/// Fails the run if the paying clients waited too long, or if the slow senders were not refused
/// while they did.
fn verdict(ratio: Summary, refused_min: usize) -> Outcome {
    if refused_min < SENDERS / 4 {
        return Err(
            format!("only {refused_min} slow senders were refused in a round: nothing was measured").into()
        );
    }
    if ratio.median.is_nan() || ratio.median > RATIO_MAX {
        return Err(format!(
            "the p99 beside slow senders is {ratio} times the one alone; at most {RATIO_MAX}"
        )
        .into());
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Latencies {
    p50_ms: f64,
    p99_ms: f64,
}

fn paced(address: SocketAddr, keys: &mut Keys) -> Outcome<Latencies> {
    let load = Load {
        addresses: vec![address],
        connections: CONNECTIONS,
        kind: Kind::Fresh,
        pace: Pace::Rate(RATE_PER_S),
        until: Until::Elapsed { warm: WARM, counted: COUNTED },
        request_bytes: 200,
        answer_bytes: 200,
        settled: 0..1,
        is_ours: true,
        path: None,
    };
    let mut sample = load.run(keys, &mut || Ok(()))?;
    let mut at = |share| percentile(&mut sample.latencies, share).as_secs_f64() * 1_000.0;
    Ok(Latencies { p50_ms: at(0.5), p99_ms: at(0.99) })
}

/// The slow senders, on a thread of their own.
struct Attack {
    thread: JoinHandle<Result<(), String>>,
    shared: Arc<Shared>,
}

/// What all senders know.
#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Senders that have connected.
    connected: AtomicUsize,
    /// Answers with 408.
    refused: AtomicUsize,
}

impl Attack {
    /// Returns once every sender has connected.
    fn start(address: SocketAddr) -> Outcome<Self> {
        let shared = Arc::new(Shared::default());
        let of_senders = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("slow senders".to_owned()).spawn(move || {
            runtime.block_on(async {
                let sender = || tokio::spawn(sender(address, Arc::clone(&of_senders)));
                let senders: Vec<_> = (0..SENDERS).map(|_| sender()).collect();
                for sender in senders {
                    sender.await.map_err(|error| error.to_string())?;
                }
                Ok(())
            })
        })?;
        while shared.connected.load(Ordering::Relaxed) < SENDERS && !thread.is_finished() {
            std::thread::yield_now();
        }
        Ok(Self { thread, shared })
    }

    /// Ends it, and says how many senders were refused.
    fn end(self) -> Outcome<usize> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the slow senders panicked")??;
        Ok(self.shared.refused.load(Ordering::Relaxed))
    }
}

async fn sender(address: SocketAddr, shared: Arc<Shared>) {
    let mut is_first = true;
    while !shared.is_over.load(Ordering::Relaxed) {
        let stream = connect(address).await;
        if std::mem::take(&mut is_first) {
            shared.connected.fetch_add(1, Ordering::Relaxed);
        }
        if let Ok(stream) = stream {
            // Ends with an error where the gateway has closed the connection at once: this address
            // has too many.
            drop(trickle(stream, &shared).await);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Another address of this machine than the one that pays.
async fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), 0))?;
    socket.connect(address).await
}

async fn trickle(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let head = "POST /payments HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer slow\r\n\
                Idempotency-Key: \"slow-sender\"\r\nContent-Length: 10000\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let mut answer = [0; 12];
    while !shared.is_over.load(Ordering::Relaxed) {
        tokio::time::sleep(PAUSE).await;
        match stream.try_read(&mut answer) {
            Ok(_) => {
                let is_refusal = &answer == b"HTTP/1.1 408";
                shared.refused.fetch_add(usize::from(is_refusal), Ordering::Relaxed);
                return Ok(());
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => stream.write_all(b"x").await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{RATIO_MAX, SENDERS, Summary, verdict};

    #[test]
    fn the_run_fails_above_the_limit_and_without_refusals() {
        let of = |ratio: f64| Summary::of(&[ratio, ratio, 100.0]);
        assert!(verdict(of(RATIO_MAX), SENDERS).is_ok());
        let words = verdict(of(2.01), SENDERS).unwrap_err().to_string();
        assert!(words.contains("2.01 (2.01\u{2013}100.00)"), "{words}");
        assert!(verdict(of(f64::NAN), SENDERS).is_err());
        assert!(verdict(of(1.0), 0).is_err());
    }
}
