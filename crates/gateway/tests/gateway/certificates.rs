//! Certificates are exchanged while connections are open.

use std::net::SocketAddr;

use metrics_exporter_prometheus::PrometheusBuilder;
use oncegate_gateway::Gateway;
use rustls::pki_types::CertificateDer;

use crate::gateway::{Stage, admin, config};
use crate::http1::Http1;
use crate::tls::Certificates;
use crate::upstream::Upstream;

/// What a new connection is shown.
async fn shown(certificates: &Certificates, to: SocketAddr) -> CertificateDer<'static> {
    let stream = certificates.connect(to, "http/1.1").await;
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

/// A certificate was renewed in time, and the gateway went on with the old one until it had
/// expired.
#[tokio::test]
async fn new_connections_see_the_new_certificate_and_open_ones_stay() {
    let certificates = Certificates::new();
    let toml = format!("{}[admin]\n{}", certificates.listen(), certificates.files());
    let stage = Stage::numbered(&toml).await;
    let listeners = [stage.addr(), stage.gateway.admin_address().tcp().unwrap()];
    let first = certificates.certificate();
    let mut open = Vec::new();
    for to in listeners {
        assert_eq!(shown(&certificates, to).await, first);
        let mut client = Http1::over(certificates.connect(to, "http/1.1").await).await;
        assert_eq!(client.get("/healthz", &[("host", "localhost")]).await.status, 200);
        open.push(client);
    }
    certificates.renew(2031);
    let second = certificates.certificate();
    assert_ne!(first, second);
    for to in listeners {
        assert_eq!(shown(&certificates, to).await, first, "not before it is told");
    }
    stage.gateway.reload_certificates();
    for (to, client) in listeners.into_iter().zip(&mut open) {
        assert_eq!(shown(&certificates, to).await, second);
        assert_eq!(client.get("/healthz", &[("host", "localhost")]).await.status, 200, "still open");
    }

    // None of these replaces one that works.
    let key = std::fs::read_to_string(certificates.path("key.pem")).unwrap();
    let chain = std::fs::read_to_string(certificates.path("server.pem")).unwrap();
    certificates.write("server.pem", "no certificate");
    stage.gateway.reload_certificates();
    certificates.write("server.pem", &chain);
    certificates.write("key.pem", "no key");
    stage.gateway.reload_certificates();
    certificates.renew(2031);
    certificates.write("key.pem", &key);
    stage.gateway.reload_certificates();
    certificates.renew(2021);
    stage.gateway.reload_certificates();
    std::fs::remove_file(certificates.path("server.pem")).unwrap();
    stage.gateway.reload_certificates();
    for to in listeners {
        assert_eq!(shown(&certificates, to).await, second, "the last one that works stays");
    }
    certificates.renew(2032);
    stage.gateway.reload_certificates();
    for to in listeners {
        assert_eq!(shown(&certificates, to).await, certificates.certificate());
    }
}

/// The file may name other files; TLS itself comes and goes by a restart.
#[tokio::test]
async fn a_reload_reads_the_files_that_the_file_names_now() {
    let (old, new) = (Certificates::new(), Certificates::new());
    let upstream = Upstream::numbered().await;
    let behind = format!("http://{}", upstream.addr);
    let mut gateway = Gateway::start(config(&behind, &old.listen()), None).await.unwrap();
    let reloaded = gateway.reload(config(&behind, &new.listen())).unwrap();
    assert_eq!(reloaded.needs_restart, [""; 0]);
    assert_eq!(shown(&new, gateway.address()).await, new.certificate());
    let reloaded = gateway.reload(config(&behind, "")).unwrap();
    assert_eq!(reloaded.needs_restart, ["listen"]);
    let reloaded = gateway.reload(config(&behind, &format!("{}[admin]\n{}", new.listen(), new.files())));
    assert_eq!(reloaded.unwrap().needs_restart, ["admin"]);
    assert_eq!(admin(&gateway, "/healthz").await.status, 200, "in clear text, as it began");
}

#[tokio::test]
async fn the_expiry_is_a_metric_of_each_listener() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let shown = recorder.handle();
    // Of this thread alone, on which the test runs.
    let _counting = metrics::set_default_local_recorder(&recorder);
    let certificates = Certificates::new();
    let gateway = Stage::numbered(&certificates.listen()).await.gateway;
    let line =
        |seconds: u64| format!("oncegate_tls_certificate_expires_seconds{{listener=\"public\"}} {seconds}\n");
    // The first of January of 2030, and of 2031.
    assert!(shown.render().contains(&line(1_893_456_000)), "{}", shown.render());
    certificates.renew(2031);
    gateway.reload_certificates();
    assert!(shown.render().contains(&line(1_924_992_000)), "{}", shown.render());
    assert!(!shown.render().contains("listener=\"admin\""), "it has no certificate");
}
