//! The one moment of doubt: COMMIT, cut on the wire. Business rows and completed keys match one to one whatever became of it.

use std::time::Duration;

use oncegate_core::policy::{Policy, Profile};
use oncegate_core::record::StateKind;
use oncegate_store::{Filter, Store as _};
use oncegate_test_servers::{Cut, Postgres, TcpProxy};
use tokio::task::JoinSet;

use crate::base::{Base, OnPostgres, Remote};
use crate::client::{Call, within};
use crate::node::{LONG, Node, Work, gated, simple};
use crate::place::Place;
use crate::stage::policy;

/// A database behind a proxy. The store has its own way to it: what is cut is the service's pool.
pub(crate) async fn proxied<B: Remote>() -> (B, TcpProxy) {
    proxied_by(8).await
}

/// The same, with a pool of so many connections.
pub(crate) async fn proxied_by<B: Remote>(connections: u32) -> (B, TcpProxy) {
    let base = OnPostgres::start().await;
    let proxy = TcpProxy::start(&base.place.url);
    let through = B::by(&base, &proxy.url_of(&base.place.url), connections);
    (through, proxy)
}

fn call(key: &str) -> Call {
    Call::post("/charges").key(key)
}

/// Whoever waits is told soon that nothing is known; but not before a busy machine has done what it can.
fn hasty() -> Policy {
    policy(Profile::Ietf, |policy| policy.patience = Duration::from_secs(3))
}

/// The keys with a row of their own are those whose answer is kept.
pub(crate) async fn expect_one_to_one<B: Base>(base: &B) -> Vec<String> {
    let filter = Filter { state: Some(StateKind::Completed), ..Filter::default() };
    let page = base.store().await.browse(&filter, None, 10_000).await.unwrap();
    let mut keys: Vec<String> =
        page.records.iter().map(|record| record.address.key.as_str().to_owned()).collect();
    keys.sort();
    let charges = base.charges().await;
    assert_eq!(charges, keys);
    charges
}

/// 24 rounds of so many clients, each with a key of its own; in each round one of the first `among` commits is cut, in either way. Whoever is told anything but its answer is told
/// one of these; in the end everybody has it.
pub(crate) async fn cut_under_load<B: Base>(
    node: &Node<B>,
    proxy: &TcpProxy,
    clients_at_once: usize,
    among: u32,
    refusals: &'static [(u16, &str)],
) {
    for round in 0..24 {
        let cut = if round % 2 == 0 { Cut::BeforeSending } else { Cut::AfterSending };
        proxy.cut_at(b"COMMIT", 1 + round % among, cut);
        let mut clients = JoinSet::new();
        for client in 0..clients_at_once {
            let (call, addr) = (call(&format!("key-{round:02}-{client:02}")), node.addr);
            clients.spawn(async move {
                let first = call.send(addr).await;
                let again = call.send_until_settled(addr).await;
                assert_eq!(again.status, 200, "{again:?}");
                if first.status == 200 {
                    assert_eq!(again.in_common(), first.in_common());
                    return;
                }
                let refusal = refusals.iter().find(|(status, _)| *status == first.status);
                let (status, code) = refusal.unwrap_or(&refusals[0]);
                first.expect_problem(*status, code);
            });
        }
        while let Some(client) = within(clients.join_next()).await {
            client.unwrap();
        }
        proxy.fired();
    }
}

on_both_pools! {
    async fn a_commit_whose_acknowledgement_was_lost_is_found<B: Remote>() {
        let (base, proxy) = proxied::<B>().await;
        let node = simple(&base, Profile::Ietf).await;
        proxy.cut_at(b"COMMIT", 1, Cut::AfterSending);
        call("k").send(node.addr).await.expect_first(200, "run 1");
        proxy.fired();
        call("k").send(node.addr).await.expect_replay(200, "run 1");
        assert_eq!(expect_one_to_one(&base).await, ["k"]);
    }

    async fn a_commit_that_never_arrived_is_found_not_to_be<B: Remote>() {
        let (base, proxy) = proxied::<B>().await;
        let node = simple(&base, Profile::Ietf).await;
        proxy.cut_at(b"COMMIT", 1, Cut::BeforeSending);
        let problem = call("k").send(node.addr).await.expect_problem(503, "store_unavailable");
        assert!(problem["detail"].as_str().unwrap().contains("Nothing was executed"), "{problem}");
        proxy.fired();
        assert_eq!(expect_one_to_one(&base).await, [""; 0]);
        call("k").send(node.addr).await.expect_first(200, "run 2");
        assert_eq!(expect_one_to_one(&base).await, ["k"]);
    }

    /// Nobody can be asked before the client's patience ends. Then it is told that nothing is known, and its retry finds out.
    async fn a_commit_that_nobody_can_be_asked_about_is_unknown_until_the_retry<B: Remote>() {
        for (cut, run) in [(Cut::AfterSending, 1), (Cut::BeforeSending, 2)] {
            let (base, proxy) = proxied::<B>().await;
            let node = simple(&base, hasty()).await;
            proxy.cut_off_at(b"COMMIT", 1, cut);
            call("k").send(node.addr).await.expect_problem(504, "outcome_unknown");
            proxy.mend();
            let reply = call("k").send_until_settled(node.addr).await;
            assert_eq!(
                (reply.status, str::from_utf8(&reply.body)),
                (200, Ok(&*format!("run {run}"))),
                "{reply:?}"
            );
            assert_eq!(reply.is_replay(), run == 1);
            assert_eq!(expect_one_to_one(&base).await, ["k"]);
        }
    }

    /// The server itself dies in that moment, and comes back.
    async fn a_server_that_dies_over_the_commit_leaves_both_or_none<B: Remote>() {
        for cut in [Cut::AfterSending, Cut::BeforeSending] {
            let mut server = Postgres::start(&[]);
            let base = OnPostgres::at(Place::at(&server.url())).await;
            let proxy = TcpProxy::start(&server.url());
            let node = simple(&B::by(&base, &proxy.url_of(&server.url()), 8), hasty()).await;
            proxy.cut_off_at(b"COMMIT", 1, cut);
            call("k").send(node.addr).await.expect_problem(504, "outcome_unknown");
            server.kill_9();
            call("k").send(node.addr).await.expect_problem(503, "store_unavailable");
            server.start_again();
            proxy.mend();
            let before = expect_one_to_one(&base).await.len();
            assert_eq!(before, usize::from(cut == Cut::AfterSending));
            let reply = within(async {
                loop {
                    let reply = call("k").send(node.addr).await;
                    if reply.status == 200 {
                        return reply;
                    }
                    reply.expect_problem(503, "store_unavailable");
                }
            })
            .await;
            assert_eq!(reply.is_replay(), before == 1);
            assert_eq!(expect_one_to_one(&base).await, ["k"]);
        }
    }

    /// The connection stands still, with the commit on it or before that: nobody knows which, until it moves again.
    async fn a_connection_that_stands_still_is_given_up<B: Remote>() {
        let (base, proxy) = proxied::<B>().await;
        let (gate, node) = gated(&base, hasty()).await;
        let mut first = call("k").open(node.addr).await;
        gate.entered().await;
        proxy.stall();
        gate.open();
        first.reply().await.unwrap().expect_problem(504, "outcome_unknown");
        proxy.flow();
        gate.open();
        // It was on it.
        let reply = call("k").send_until_settled(node.addr).await;
        reply.expect_replay(200, "run 1");
        assert_eq!(expect_one_to_one(&base).await, ["k"]);
    }

    /// A deferred constraint refuses at the commit: that is no doubt.
    async fn a_commit_that_is_refused_is_rolled_back<B: Remote>() {
        let base = B::start().await;
        let schema = &base.place().schema;
        let deferred = format!(
            "ALTER TABLE {schema}.charge ADD CONSTRAINT once UNIQUE (key) DEFERRABLE INITIALLY DEFERRED; \
             INSERT INTO {schema}.charge VALUES ('k')"
        );
        base.place().raw().await.batch_execute(&deferred).await.unwrap();
        // Its own database's word is enough: nobody is asked again, and nobody waits.
        let patient = policy(Profile::Ietf, |policy| policy.patience = Duration::from_hours(1));
        let node = Node::with(&base, base.pool(), patient, LONG, Work::done).await;
        call("k").send(node.addr).await.expect_problem(503, "store_unavailable");
        assert_eq!(node.state("k").await, None);
    }

    /// Load, and one COMMIT after the other cut in either way.
    async fn commits_cut_under_load_leave_rows_and_keys_one_to_one<B: Remote>() {
        let (base, proxy) = proxied::<B>().await;
        let node = simple(&base, Profile::Ietf).await;
        cut_under_load(&node, &proxy, 8, 5, &[(503, "store_unavailable")]).await;
        assert_eq!(expect_one_to_one(&base).await.len(), 24 * 8);
        assert!(node.runs() > 24 * 8, "some had to run again");
    }
}
