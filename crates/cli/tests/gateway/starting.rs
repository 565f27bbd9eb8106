//! A gateway that cannot start says why, and touches nothing.

use std::net::TcpListener;
use std::path::Path;

use crate::process::{Running, serve};
use crate::world::Place;

/// Starts it with this file, which must fail; its exit code and words.
#[track_caller]
fn refused(file: &Path, code: i32) -> String {
    let mut running = Running::start(serve().arg("--config").arg(file));
    let ended = running.exit_code();
    let said = running.said();
    assert_eq!(ended, code, "{said}");
    assert!(said.contains("error: "), "{said}");
    assert!(!said.contains("listens on"), "{said}");
    said
}

/// The usual file, but for one piece of its text.
fn file_with(place: &Place, piece: &str, otherwise: &str) -> std::path::PathBuf {
    let file = place.configure("http://127.0.0.1:1", "");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(piece), "{text}");
    std::fs::write(&file, text.replacen(piece, otherwise, 1)).unwrap();
    file
}

#[test]
fn a_port_in_use_is_named_before_the_store_is_touched() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for (section, flag) in [("[listen]", "--listen"), ("[admin]", "--admin")] {
        let place = Place::sqlite();
        let piece = format!("{section}\naddress = \"127.0.0.1:0\"");
        let file = file_with(&place, &piece, &format!("{section}\naddress = \"{address}\""));
        let said = refused(&file, 1);
        assert!(said.contains(&format!("{flag}: {address} cannot be listened on")), "{said}");
        assert!(said.contains("another process has it"), "{said}");
        assert!(!place.records().exists(), "no file was made");
    }
}

#[test]
fn a_store_that_is_not_there_is_named_without_its_password() {
    let place = Place::sqlite();
    let url = format!("sqlite://{}", place.records().display());
    let file = file_with(&place, &url, "postgres://oncegate:hunter22@127.0.0.1:1/payments");
    let said = refused(&file, 1);
    assert!(said.contains("127.0.0.1") || said.contains("refused"), "{said}");
    assert!(!said.contains("hunter22"), "{said}");
}

#[test]
fn a_certificate_that_cannot_be_read_is_named_before_the_store_is_touched() {
    for (text, words) in [(None, "No such file"), (Some("this is no PEM"), "holds no certificate")] {
        let place = Place::sqlite();
        if let Some(text) = text {
            std::fs::write(place.path().join("chain.pem"), text).unwrap();
            std::fs::write(place.path().join("key.pem"), text).unwrap();
        }
        let listen = "[listen]\ntls_certificate = \"chain.pem\"\ntls_key = \"key.pem\"";
        let said = refused(&file_with(&place, "[listen]", listen), 1);
        let chain = place.path().join("chain.pem");
        assert!(said.contains(&format!("listen: {}", chain.display())), "{said}");
        assert!(said.contains(words), "{said}");
        assert!(!place.records().exists(), "no file was made");
    }
}

#[test]
fn an_admin_listener_for_everybody_without_a_token_is_refused() {
    let place = Place::sqlite();
    let file = file_with(&place, "[admin]\naddress = \"127.0.0.1:0\"", "[admin]\naddress = \"0.0.0.0:0\"");
    let said = refused(&file, 2);
    assert!(said.contains("would show every record to every client that reaches 0.0.0.0:0"), "{said}");
    assert!(said.contains(&format!("{}:4:", file.display())), "the line of the file: {said}");
    assert!(said.contains("nothing was started"), "{said}");
    assert!(!place.records().exists(), "no file was made");
}
