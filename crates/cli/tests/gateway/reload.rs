//! SIGHUP: the file is read again.

use std::net::SocketAddr;
use std::sync::Arc;

use oncegate_test_servers::{Certificate, wait_until};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::upstream::Upstream;
use crate::world::{Place, charge};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_are_taken_over_and_a_wrong_file_changes_nothing() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    let gateway = place.start(&upstream.url(), "[[route]]\nmatch = \"POST /charges\"\nprofile = \"off\"\n");
    let key = "a-key-of-sixteen-or-more";
    for _ in 0..2 {
        let passed = charge(key).send(gateway.address).await;
        assert_eq!((passed.status, passed.is_replay()), (201, false));
    }
    assert_eq!(upstream.requests(), 2, "off: whatever comes is passed on");
    assert_eq!(gateway.state(key), "absent");

    place.configure(&upstream.url(), "[[route]]\nmatch = \"POST /charges\"\nprofile = \"payments\"\n");
    gateway.signal(Signal::HUP);
    gateway.hear("reloaded routes, scope, webhooks and effects");
    let first = charge(key).send(gateway.address).await;
    let second = charge(key).send(gateway.address).await;
    assert_eq!((first.status, first.is_replay(), second.is_replay()), (201, false, true));
    charge("short").send(gateway.address).await.expect_problem(400, "key_invalid");
    assert_eq!(upstream.requests(), 3);

    let wrong =
        place.configure(&upstream.url(), "[[route]]\nmatch = \"POST /charges\"\nprofile = \"paiments\"\n");
    gateway.signal(Signal::HUP);
    gateway.hear("the file was not taken over, and every setting stays as it was");
    // Where it is wrong, and what.
    let text = std::fs::read_to_string(&wrong).unwrap();
    let line = text.lines().position(|line| line.contains("paiments")).unwrap() + 1;
    gateway.hear(&format!("{}:{line}:", wrong.display()));
    gateway.hear("paiments");
    assert!(charge(key).send(gateway.address).await.is_replay(), "still protected");
    charge("short").send(gateway.address).await.expect_problem(400, "key_invalid");

    std::fs::remove_file(&wrong).unwrap();
    gateway.signal(Signal::HUP);
    gateway.hear("the file could not be read");
    assert!(charge(key).send(gateway.address).await.is_replay(), "still protected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_needs_a_restart_is_named_and_the_rest_is_taken_over() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    let gateway = place.start(&upstream.url(), "");
    let file = place.configure("http://127.0.0.1:1", "[defaults]\nprofile = \"off\"\n");
    let text = std::fs::read_to_string(&file).unwrap();
    // The listener's address, and with it the upstream's.
    std::fs::write(&file, text.replacen("127.0.0.1:0", "127.0.0.1:1", 1)).unwrap();
    gateway.signal(Signal::HUP);
    gateway.hear("changed, and needs a restart: listen, upstream");
    gateway.hear("reloaded routes, scope, webhooks and effects");
    for _ in 0..2 {
        let passed = charge("key-1").send(gateway.address).await;
        assert_eq!((passed.status, passed.is_replay()), (201, false), "where it was, and with the new rules");
    }
    assert_eq!(upstream.requests(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_under_way_ends_by_the_rules_that_it_began_under() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    let gateway = place.start(&upstream.url(), "");
    upstream.shut();
    let mut client = charge("key-1").open(gateway.address).await;
    upstream.wait_for_waiting(1);
    place.configure(&upstream.url(), "[defaults]\nprofile = \"off\"\n");
    gateway.signal(Signal::HUP);
    gateway.hear("reloaded routes, scope, webhooks and effects");
    upstream.open();
    assert_eq!(client.reply().await.unwrap().status, 201);
    gateway.wait_for_state("key-1", "completed");

    place.configure(&upstream.url(), "");
    gateway.signal(Signal::HUP);
    wait_until("it was reloaded twice", || {
        gateway.said().matches("reloaded routes, scope, webhooks and effects").count() == 2
    });
    assert!(charge("key-1").send(gateway.address).await.is_replay());
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_drains_for_as_long_as_the_last_file_says() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    let mut gateway = place.start(&upstream.url(), "[shutdown]\ndrain = \"1h\"\n");
    upstream.shut();
    let mut client = charge("key-1").open(gateway.address).await;
    upstream.wait_for_waiting(1);
    place.configure(&upstream.url(), "[shutdown]\ndrain = \"20ms\"\n");
    gateway.signal(Signal::HUP);
    gateway.hear("reloaded routes, scope, webhooks and effects");
    assert_eq!(gateway.terminate(), 0, "{}", gateway.said());
    assert!(gateway.said().contains("for up to 20ms"), "{}", gateway.said());
    client.reply().await.unwrap().expect_problem(504, "outcome_unknown");
}

/// The certificate that a new connection is shown, if one of these authorities stands for it.
async fn shown(to: SocketAddr, trusted: &[Certificate]) -> CertificateDer<'static> {
    let mut roots = RootCertStore::empty();
    for certificate in trusted {
        roots.add(CertificateDer::from_pem_file(&certificate.authority).unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(to).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

/// A certificate was renewed in time, and the gateway showed the old one until it had expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_read_again() {
    let (place, upstream) = (Place::sqlite(), Upstream::start().await);
    let both = ["first", "second"].map(|name| {
        let folder = place.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        Certificate::new(&folder)
    });
    let (chain, key) = (place.path().join("chain.pem"), place.path().join("key.pem"));
    let take = |certificate: &Certificate| {
        std::fs::copy(&certificate.certificate, &chain).unwrap();
        std::fs::copy(&certificate.key, &key).unwrap();
        CertificateDer::from_pem_file(&chain).unwrap()
    };
    let first = take(&both[0]);
    let file = place.configure(&upstream.url(), "");
    let text = std::fs::read_to_string(&file).unwrap();
    let tls = "tls_certificate = \"chain.pem\"\ntls_key = \"key.pem\"\n";
    let text = text.replace("[listen]\n", &format!("[listen]\n{tls}"));
    let text = text.replace("[admin]\n", &format!("[admin]\n{tls}"));
    std::fs::write(&file, &text).unwrap();
    let gateway = crate::process::Gateway::start(&file);
    let listeners = [gateway.address, gateway.admin];
    for to in listeners {
        assert_eq!(shown(to, &both).await, first);
    }
    let second = take(&both[1]);
    gateway.signal(Signal::HUP);
    for listener in ["public", "admin"] {
        let words =
            format!("reloaded the TLS certificate listener=\"{listener}\" expires=\"4096-01-01T00:00:00Z\"");
        gateway.hear(&words);
    }
    for to in listeners {
        assert_eq!(shown(to, &both).await, second);
    }
    std::fs::write(&chain, "half a certifi").unwrap();
    gateway.signal(Signal::HUP);
    wait_until("both say that it cannot be used", || {
        let words = "ERROR the TLS certificate was not reloaded, and the old one stays in use";
        gateway.said().matches(words).count() == 2
    });
    for to in listeners {
        assert_eq!(shown(to, &both).await, second);
    }

    // A mistake in the file does not keep a renewed certificate out.
    take(&both[0]);
    std::fs::write(&file, "nonsense").unwrap();
    gateway.signal(Signal::HUP);
    gateway.hear("the file was not taken over, and every setting stays as it was");
    wait_until("both are reloaded again", || {
        gateway.said().matches(" reloaded the TLS certificate").count() == 4
    });
    for to in listeners {
        assert_eq!(shown(to, &both).await, first);
    }
}
