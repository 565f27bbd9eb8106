//! What 2,000 slow senders of one address cost the clients of another.
//!
//! Each slow sender announces a body and sends one byte per second. A sender whose connection is
//! closed comes again a second later, so the attack never ends by itself. Meanwhile paced clients
//! of another address pay, at a fraction of the saturating rate, and their latencies count from
//! the moment a request was due. Rounds with and without the slow senders take turns.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use crate::Outcome;
use crate::fill;
use crate::gateway::{serve, upstream};
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
const COUNTED: Duration = Duration::from_secs(10);

pub(crate) fn run(options: &Options) -> Outcome {
    let file = options.dir.join("slow-senders.db");
    fill::remove(&file)?;
    let gateway = serve(upstream::start()?, &format!("sqlite://{}", file.display()))?;
    let mut keys = Keys::new();
    let mut contenders = [("alone", false), ("beside 2,000 slow senders", true)];
    let turns = interleave(options.rounds, &mut contenders, |(_, is_attacked)| {
        let attack = is_attacked.then(|| Attack::start(gateway.address)).transpose()?;
        let latencies = paced(gateway.address, &mut keys)?;
        if let Some(attack) = attack {
            attack.end()?;
        }
        Ok(latencies)
    })?;
    println!(
        "| {RATE_PER_S} fresh keys/s on {CONNECTIONS} connections, SQLite | p50 ms | p99 ms | p99 : alone |"
    );
    println!("| --- | --- | --- | --- |");
    let series = |turns: &[Latencies], of: fn(&Latencies) -> f64| turns.iter().map(of).collect::<Vec<_>>();
    let alone = series(&turns[0], |turn| turn.p99_ms);
    for ((name, _), turns) in contenders.iter().zip(&turns) {
        let p99 = series(turns, |turn| turn.p99_ms);
        let [p50, ratio] = [Summary::of(&series(turns, |turn| turn.p50_ms)), Summary::of_ratio(&p99, &alone)];
        println!("| {name} | {p50} | {} | {ratio} |", Summary::of(&p99));
    }
    gateway.end();
    fill::remove(&file)
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
    is_over: Arc<AtomicBool>,
}

impl Attack {
    /// Returns once every sender has connected.
    fn start(address: SocketAddr) -> Outcome<Self> {
        let (is_over, connected) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_ended, count) = (Arc::clone(&is_over), Arc::clone(&connected));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("slow senders".to_owned()).spawn(move || {
            runtime.block_on(async {
                let senders: Vec<_> = (0..SENDERS)
                    .map(|_| tokio::spawn(sender(address, Arc::clone(&is_ended), Arc::clone(&count))))
                    .collect();
                for sender in senders {
                    sender.await.map_err(|error| error.to_string())?;
                }
                Ok(())
            })
        })?;
        while connected.load(Ordering::Relaxed) < SENDERS && !thread.is_finished() {
            std::thread::yield_now();
        }
        Ok(Self { thread, is_over })
    }

    fn end(self) -> Outcome {
        self.is_over.store(true, Ordering::Relaxed);
        Ok(self.thread.join().map_err(|_| "the slow senders panicked")??)
    }
}

async fn sender(address: SocketAddr, is_over: Arc<AtomicBool>, connected: Arc<AtomicUsize>) {
    let mut is_first = true;
    while !is_over.load(Ordering::Relaxed) {
        let stream = connect(address).await;
        if std::mem::take(&mut is_first) {
            connected.fetch_add(1, Ordering::Relaxed);
        }
        if let Ok(stream) = stream {
            // Ends with an error once the gateway has closed the connection.
            drop(trickle(stream, &is_over).await);
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

async fn trickle(mut stream: TcpStream, is_over: &AtomicBool) -> std::io::Result<()> {
    let head = "POST /payments HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer slow\r\n\
                Idempotency-Key: \"slow-sender\"\r\nContent-Length: 10000\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    while !is_over.load(Ordering::Relaxed) {
        tokio::time::sleep(PAUSE).await;
        stream.write_all(b"x").await?;
    }
    Ok(())
}
