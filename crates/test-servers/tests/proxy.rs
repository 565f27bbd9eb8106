//! The proxy's cuts, against a server that answers each line and remembers what it got.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use oncegate_test_servers::{Cut, Postgres, TcpProxy, wait_until};

/// Echoes, and keeps all bytes of all connections in the order of their arrival.
struct Echo {
    address: String,
    got: Arc<Mutex<Vec<u8>>>,
    ended: Arc<Mutex<u32>>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (got, ended) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<Mutex<u32>>::default());
        let (all, over) = (Arc::clone(&got), Arc::clone(&ended));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (all, over) = (Arc::clone(&all), Arc::clone(&over));
                std::thread::spawn(move || {
                    let mut buffer = [0; 1024];
                    while let Ok(read @ 1..) = stream.read(&mut buffer) {
                        all.lock().unwrap().extend(&buffer[..read]);
                        let _answered = stream.write_all(&buffer[..read]);
                    }
                    *over.lock().unwrap() += 1;
                });
            }
        });
        Self { address, got, ended }
    }

    fn got(&self) -> String {
        String::from_utf8(self.got.lock().unwrap().clone()).unwrap()
    }

    fn wait_until_ended(&self, connections: u32) {
        wait_until("the server's side is closed", || *self.ended.lock().unwrap() == connections);
    }
}

fn say(client: &mut TcpStream, text: &str) -> String {
    client.write_all(text.as_bytes()).unwrap();
    let mut answer = vec![0; text.len()];
    client.read_exact(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

/// What a client that was cut off still gets: nothing.
fn rest(client: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let _reset_or_ended = client.read_to_end(&mut rest);
    rest
}

#[test]
fn bytes_go_through_both_ways() {
    let echo = Echo::start();
    let proxy = TcpProxy::start(&echo.address);
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(say(&mut client, "hello"), "hello");
    assert_eq!(say(&mut client, "again"), "again");
    assert_eq!(say(&mut TcpStream::connect(proxy.addr()).unwrap(), "one"), "one");
    assert_eq!(proxy.round_trips(), 3);
    let url = proxy.url_of("postgres://me@127.0.0.1:5432/db?x=1");
    assert_eq!(url, format!("postgres://me@{}/db?x=1", proxy.addr()));
    drop(client);
    echo.wait_until_ended(2);
    assert_eq!(proxy.accepted(), 2);
}

#[test]
fn cut_before_sending_keeps_the_bytes_from_the_server() {
    let echo = Echo::start();
    let proxy = TcpProxy::start(&echo.address);
    proxy.cut_at(b"COMMIT", 2, Cut::BeforeSending);
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(say(&mut client, "a COMMIT;"), "a COMMIT;");
    assert!(!proxy.has_fired());
    client.write_all(b"b COMMIT;").unwrap();
    proxy.fired();
    rest(&mut client);
    echo.wait_until_ended(1);
    assert_eq!(echo.got(), "a COMMIT;b ");
    // Once, and only that connection.
    let mut next = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(say(&mut next, "COMMIT"), "COMMIT");
}

#[test]
fn cut_after_sending_keeps_the_answer_from_the_client() {
    let echo = Echo::start();
    let proxy = TcpProxy::start(&echo.address);
    proxy.cut_at(b"COMMIT", 1, Cut::AfterSending);
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(say(&mut client, "begin;"), "begin;");
    client.write_all(b"insert; COMMIT;").unwrap();
    proxy.fired();
    assert_eq!(rest(&mut client), b"");
    echo.wait_until_ended(1);
    assert_eq!(echo.got(), "begin;insert; COMMIT;");
}

#[test]
fn bytes_that_arrive_in_parts_are_found() {
    let echo = Echo::start();
    let proxy = TcpProxy::start(&echo.address);
    proxy.cut_at(b"COMMIT", 1, Cut::BeforeSending);
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    // Its answer shows that the first part was read apart from the second.
    assert_eq!(say(&mut client, "COM"), "COM");
    client.write_all(b"MIT").unwrap();
    proxy.fired();
    echo.wait_until_ended(1);
    assert_eq!(echo.got(), "COM");
}

#[test]
fn a_cut_line_is_closed_and_stays_so_until_it_is_mended() {
    let echo = Echo::start();
    let proxy = TcpProxy::start(&echo.address);
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(say(&mut client, "1"), "1");
    proxy.cut();
    assert_eq!(rest(&mut client), b"");
    assert_eq!(rest(&mut TcpStream::connect(proxy.addr()).unwrap()), b"");
    proxy.wait_until_refused(1);
    assert_eq!((proxy.accepted(), proxy.refused()), (1, 1));
    proxy.mend();
    assert_eq!(say(&mut TcpStream::connect(proxy.addr()).unwrap(), "2"), "2");
    assert_eq!((proxy.accepted(), proxy.refused()), (2, 1));
}

#[test]
fn a_stalled_line_holds_bytes_back_and_loses_none() {
    let echo = Echo::start();
    let proxy = TcpProxy::start(&echo.address);
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    assert_eq!(say(&mut client, "1"), "1");
    proxy.stall();
    client.write_all(b"2").unwrap();
    // A connection past the proxy has gone all the way: the stalled one has had its time.
    assert_eq!(say(&mut TcpStream::connect(&echo.address).unwrap(), "3"), "3");
    assert_eq!(echo.got(), "13");
    proxy.flow();
    let mut answer = [0];
    client.read_exact(&mut answer).unwrap();
    assert_eq!((&answer, echo.got().as_str()), (b"2", "132"));
}

#[test]
fn a_commit_that_was_cut_off_has_or_has_not_happened() {
    let server = Postgres::start(&[]);
    let _nothing = server.sql("create table kept (name text)");
    let proxy = TcpProxy::start(&server.url());
    let psql = oncegate_test_servers::programs::postgres("psql").unwrap();
    for (name, cut) in [("before", Cut::BeforeSending), ("after", Cut::AfterSending)] {
        proxy.cut_at(b"COMMIT", 1, cut);
        let insert = format!("insert into kept values ('{name}')");
        let told = std::process::Command::new(&psql)
            .args(["-X", "-c", "BEGIN", "-c", &insert, "-c", "COMMIT", &proxy.url_of(&server.url())])
            .output()
            .unwrap();
        proxy.fired();
        assert!(!told.status.success(), "{told:?}");
    }
    assert_eq!(server.sql("select name from kept"), "after");
}

#[test]
fn a_cut_off_takes_all_connections_along_until_it_is_mended() {
    for cut in [Cut::BeforeSending, Cut::AfterSending] {
        let server = Echo::start();
        let proxy = TcpProxy::start(&server.address);
        let connect = || TcpStream::connect(proxy.addr()).unwrap();
        let (mut one, mut other) = (connect(), connect());
        assert_eq!((say(&mut one, "hello"), say(&mut other, "hello")), ("hello".into(), "hello".into()));
        proxy.cut_off_at(b"COMMIT", 1, cut);
        one.write_all(b"COMMIT").unwrap();
        proxy.fired();
        assert!(rest(&mut one).is_empty());
        assert!(rest(&mut other).is_empty());
        assert!(rest(&mut connect()).is_empty(), "nobody is let through");
        assert_eq!(server.got().contains("COMMIT"), cut == Cut::AfterSending);
        proxy.mend();
        assert_eq!(say(&mut connect(), "again"), "again");
    }
}
