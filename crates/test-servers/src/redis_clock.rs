//! A Redis server whose clock a test can set.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use crate::redis::Redis;

/// A way to a Redis server on which the answers to `TIME` are off. libfaketime does not work for Redis, see
/// [`FakeClock`](crate::FakeClock). What scripts do inside the server goes by the true time.
#[derive(Clone, Debug)]
pub struct RedisClock {
    address: SocketAddr,
    offset_s: Arc<AtomicI64>,
}

impl RedisClock {
    /// A way to this server, with a clock that shows the true time. It is open until the process ends.
    #[must_use]
    pub fn of(server: &Redis) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port can be listened on");
        let address = listener.local_addr().expect("a listener has an address");
        let clock = Self { address, offset_s: Arc::default() };
        let (port, offset_s) = (server.port(), Arc::clone(&clock.offset_s));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A server that is down: the client is cut off.
                if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                    let _cut_off = join(client, server, &offset_s);
                }
            }
        });
        clock
    }

    /// Where clients connect to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Sets the clock so many seconds before or after the true time.
    pub fn set_offset_s(&self, seconds: i64) {
        self.offset_s.store(seconds, Ordering::SeqCst);
    }
}

/// Carries bytes both ways until one side closes.
fn join(client: TcpStream, server: TcpStream, offset_s: &Arc<AtomicI64>) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _closed = io::copy(&mut from_client, &mut to_server);
        to_server.shutdown(Shutdown::Both)
    });
    let (mut from_server, mut to_client, offset_s) = (server, client, Arc::clone(offset_s));
    thread::spawn(move || -> io::Result<()> {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from_server.read(&mut bytes) {
            set_time(&mut bytes[..length], offset_s.load(Ordering::SeqCst));
            to_client.write_all(&bytes[..length])?;
        }
        to_client.shutdown(Shutdown::Both)
    });
    Ok(())
}

/// Changes the answer to `TIME`: two numbers as text, of which the first is the seconds, in ten digits.
fn set_time(bytes: &mut [u8], offset_s: i64) {
    const HEAD: &[u8] = b"*2\r\n$10\r\n";
    let Some(at) = bytes.windows(HEAD.len()).position(|part| part == HEAD) else { return };
    let Some(digits) = bytes[at + HEAD.len()..].first_chunk_mut::<10>() else { return };
    let Ok(seconds) = String::from_utf8_lossy(digits).parse::<i64>() else { return };
    digits.copy_from_slice((seconds + offset_s).to_string().as_bytes());
}
