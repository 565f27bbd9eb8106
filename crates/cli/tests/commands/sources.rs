//! Where commands look: a store, or a gateway; and what they say if there is none.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use insta::assert_snapshot;
use oncegate_test_servers::Certificate;

use crate::desk::{Desk, seen};
use crate::gateway::Gateway;
use crate::records;

const TOKEN: &str = "hunter2hunter2hunter2";
/// No process listens there.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

/// The same question, and the same answer to the last byte: the store itself, and the gateway that uses it.
#[test]
fn a_store_and_its_gateway_say_the_same() {
    let desk = Desk::with(records::all());
    let gateway = Gateway::start(desk.path(), NOWHERE, None);
    for line in [
        "keys list",
        "keys list --json",
        "keys list --limit 3",
        "keys list --state unknown",
        "keys list --parked",
        "keys list --scope other --key order-0001-payment",
        "keys list --operation 'POST /payments' --limit 500",
        "keys list --key order-9999-payment",
        "keys list --after 5",
        "keys list --after yesterday",
        "keys show order-0001-payment",
        "keys show order-0001-payment --scope acme",
        "keys show order-0001-payment --scope acme --body",
        "keys show order-0004-payment",
        "keys show order-0005-payment --json",
        "keys show order-9999-payment",
        "keys show op_00000000000000000000000000",
        "stats",
    ] {
        let (asked, told) = (desk.ask(line), desk.run(&format!("{line} --admin http://{}", gateway.admin)));
        assert_eq!(asked, told, "{line}");
    }
    // A gateway has watched the clock, and a store by itself has not.
    let told = desk.run(&format!("stats --json --admin http://{}", gateway.admin));
    let steps = "\"clock_steps\": {\n    \"back\": 0,\n    \"forward\": 0\n  }";
    assert_eq!(told.replace(steps, "\"clock_steps\": null"), desk.ask("stats --json"));
}

#[test]
fn a_gateway_with_a_token() {
    let desk = Desk::with(records::all());
    let gateway = Gateway::start(desk.path(), NOWHERE, Some(TOKEN));
    for line in ["keys list", "keys show order-0004-payment", "stats"] {
        let ask = |token: Option<&str>| {
            let mut command = desk.command(line);
            command.env("ONCEGATE_ADMIN", format!("http://{}/", gateway.admin));
            command.envs(token.map(|token| ("ONCEGATE_ADMIN_TOKEN", token)));
            seen(&command.output().unwrap())
        };
        assert_snapshot!("token_missing", ask(None));
        assert_snapshot!("token_missing", ask(Some("")));
        assert_snapshot!("token_wrong", ask(Some("hunter2hunter2hunter3")));
        assert_eq!(ask(Some(TOKEN)), desk.ask(line));
    }
}

/// Killed, it says nothing; started again, it says the same as before.
#[test]
fn a_gateway_that_is_down() {
    let desk = Desk::with(records::all());
    let mut gateway = Gateway::start(desk.path(), NOWHERE, None);
    let line = format!("stats --admin {}", gateway.admin);
    let before = desk.run(&line);
    gateway.is_killed();
    let down = desk.run(&line);
    assert_snapshot!("gateway_down", down.replace(&gateway.admin.to_string(), "ADMIN"));
    gateway.starts_again();
    assert_eq!(desk.run(&line), before);
    // The public listener is not the admin's: it wants to forward.
    let wrong = desk.run(&format!("stats --admin {}", gateway.address));
    assert_snapshot!("not_the_admin_listener", wrong.replace(&gateway.address.to_string(), "LISTEN"));
}

#[test]
fn a_store_that_is_down() {
    let desk = Desk::empty();
    for line in ["keys list", "keys show order-1", "stats"] {
        let down = |store: &str| desk.run(&format!("{line} --store {store}"));
        assert_snapshot!("file_missing", down("sqlite://oncegate.db"));
        assert_snapshot!("postgres_down", down("postgres://u:hunter2@127.0.0.1:1/db"));
        assert_snapshot!("redis_down", down("redis://:hunter2@127.0.0.1:1/"));
    }
    assert_eq!(fs::read_dir(desk.path()).unwrap().count(), 0, "whoever looks creates nothing");
}

/// A file that is there, and empty: it is not made a store of by a look.
#[test]
fn a_store_that_was_never_made() {
    let desk = Desk::empty();
    fs::write(desk.path().join("oncegate.db"), "").unwrap();
    assert_snapshot!("not_migrated", desk.ask("stats"));
    assert_eq!(fs::read(desk.path().join("oncegate.db")).unwrap(), b"");
}

#[test]
fn urls_that_are_none() {
    let desk = Desk::empty();
    assert_snapshot!("memory", desk.run("stats --store memory:"));
    assert_snapshot!("not_a_store", desk.run("stats --store oncegate.db"));
    assert_snapshot!("not_a_store_with_password", desk.run("stats --store oracle://u:hunter2@h/"));
    assert_snapshot!("no_path", desk.run("stats --store sqlite://"));
    assert_snapshot!("both", desk.run("stats --store sqlite://oncegate.db --admin 127.0.0.1:1"));
    for (name, url) in [
        ("admin_scheme", "ftp://127.0.0.1:9090"),
        ("admin_path", "http://127.0.0.1:9090/api"),
        ("admin_no_port", "http://127.0.0.1"),
        ("admin_bad_port", "http://127.0.0.1:port"),
        ("admin_user", "http://u:hunter2@127.0.0.1:9090"),
        ("admin_no_host", "http://no.such.host.invalid:9090"),
        ("admin_no_socket", "unix:"),
        ("admin_socket_missing", "unix:admin.sock"),
        ("admin_ca_without_tls", "http://127.0.0.1:9090 --ca ca.pem"),
        ("admin_ca_missing", "https://127.0.0.1:9090 --ca ca.pem"),
    ] {
        assert_snapshot!(name, desk.run(&format!("stats --admin {url}")));
    }
}

/// A flag before either variable; the admin listener's before the store's; an empty one is not set.
#[test]
fn flags_go_before_variables() {
    let desk = Desk::with(records::all());
    let admin_down = "http://127.0.0.1:1";
    let stats = desk.ask("stats");
    let ask = |line: &str, variables: &[(&str, &str)]| {
        seen(&desk.command(line).envs(variables.iter().copied()).output().unwrap())
    };
    let (admin, store) = (("ONCEGATE_ADMIN", admin_down), ("ONCEGATE_STORE", "sqlite://oncegate.db"));
    assert_eq!(ask("stats", &[store]), stats);
    assert_eq!(ask("stats", &[store, ("ONCEGATE_ADMIN", "")]), stats);
    assert_eq!(ask("stats --store sqlite://oncegate.db", &[admin]), stats);
    assert_eq!(ask("stats --store sqlite://oncegate.db", &[admin, ("ONCEGATE_STORE", "garbage")]), stats);
    for seen in [ask("stats", &[admin, store]), ask(&format!("stats --admin {admin_down}"), &[store])] {
        assert!(seen.contains("the gateway at http://127.0.0.1:1 cannot be reached"), "{seen}");
    }
}

/// So a password is in no list of processes.
#[test]
fn a_store_named_by_a_variable_or_a_file() {
    let desk = Desk::with(records::all());
    fs::write(desk.path().join("store.url"), "sqlite://oncegate.db\n").unwrap();
    let stats = desk.ask("stats");
    let by_variable = desk.command("stats --store env:BOOKS").env("BOOKS", "sqlite://oncegate.db").output();
    assert_eq!(seen(&by_variable.unwrap()), stats);
    assert_eq!(desk.run("stats --store file:store.url"), stats);
    let by_both = desk.command("stats").env("ONCEGATE_STORE", "file:store.url").output();
    assert_eq!(seen(&by_both.unwrap()), stats);
    assert!(desk.run("migrate --store file:store.url").contains("the store is up to date"));
    assert_snapshot!("variable_not_set", desk.run("stats --store env:BOOKS"));
    assert_snapshot!("store_file_missing", desk.run("stats --store file:nothing.url"));
}

/// A gateway over the desk's store, with this `[admin]`, and its admin listener as it says it.
struct Served {
    child: Child,
    admin: String,
}

impl Served {
    fn start(desk: &Desk, admin: &str, token: Option<&str>) -> Self {
        let text = format!(
            "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\n{admin}\n[upstream]\nurl = \"http://{NOWHERE}\"\n\
             [store]\nurl = \"sqlite://oncegate.db\"\n"
        );
        fs::write(desk.path().join("gateway.toml"), text).unwrap();
        let mut command = desk.command("serve --log error --config gateway.toml");
        command.envs(token.map(|token| ("ONCEGATE_ADMIN_TOKEN", token))).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let said: Vec<_> = lines.take_while(|line| !line.is_empty()).take(1).collect();
        let admin = said.first().and_then(|line| line.rsplit_once("for operators on "));
        let admin = admin.unwrap_or_else(|| panic!("the gateway did not start: {said:?}")).1.to_owned();
        Self { child, admin }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

#[test]
fn a_gateway_on_a_unix_socket() {
    let desk = Desk::with(records::all());
    let gateway = Served::start(&desk, "address = \"unix:admin.sock\"", None);
    assert_eq!(gateway.admin, "unix:admin.sock");
    for line in ["keys list", "keys show order-0004-payment", "stats"] {
        assert_eq!(desk.run(&format!("{line} --admin unix:admin.sock")), desk.ask(line));
        let told = desk.command(line).env("ONCEGATE_ADMIN", "unix:admin.sock").output().unwrap();
        assert_eq!(seen(&told), desk.ask(line));
    }
}

#[test]
fn a_gateway_with_tls() {
    let desk = Desk::with(records::all());
    let [own, other] = ["own", "other"].map(|name| {
        let folder = desk.path().join(name);
        fs::create_dir(&folder).unwrap();
        Certificate::new(&folder)
    });
    let admin = format!(
        "address = \"127.0.0.1:0\"\ntls_certificate = \"{}\"\ntls_key = \"{}\"",
        own.certificate.display(),
        own.key.display()
    );
    let gateway = Served::start(&desk, &admin, Some(TOKEN));
    let port = gateway.admin.strip_prefix("https://127.0.0.1:").unwrap();
    let run = |line: &str| {
        let output = desk.command(line).env("ONCEGATE_ADMIN_TOKEN", TOKEN).output().unwrap();
        seen(&output).replace(port, "PORT")
    };
    for line in ["keys list", "keys show order-0004-payment", "stats"] {
        for host in ["127.0.0.1", "localhost"] {
            let told = run(&format!("{line} --admin https://{host}:{port} --ca own/authority.crt"));
            assert_eq!(told, desk.ask(line), "{host}");
        }
    }
    let ask = |more: &str| run(&format!("stats --admin https://127.0.0.1:{port} {more}"));
    let trusted = desk
        .command(&format!("stats --admin https://127.0.0.1:{port}"))
        .envs([("ONCEGATE_ADMIN_TOKEN", TOKEN), ("ONCEGATE_ADMIN_CA", "own/authority.crt")])
        .output();
    assert_eq!(seen(&trusted.unwrap()), desk.ask("stats"));
    for told in [ask(""), ask(&format!("--ca {}", other.authority.display()))] {
        let words = "error: no TLS connection to https://127.0.0.1:PORT: invalid peer certificate";
        assert!(told.contains(words) && told.contains("--ca FILE"), "{told}");
    }
    assert_snapshot!("tls_in_clear_text", run(&format!("stats --admin http://127.0.0.1:{port}")));
}
