//! Through PgBouncer, which speaks up in the server's place when it loses it, and cannot know how far a commit has come.

use oncegate_core::policy::Profile;
use oncegate_test_servers::{Cut, PgBouncer, TcpProxy};

use crate::base::{Base as _, OnPostgres};
use crate::client::Call;
use crate::cut::expect_one_to_one;
use crate::node::simple;

on_both_pools! {
    async fn a_poolers_word_about_a_commit_is_not_believed<B: Remote>() {
        for (cut, status) in [(Cut::AfterSending, 200), (Cut::BeforeSending, 503)] {
            let base = OnPostgres::start().await;
            let proxy = TcpProxy::start(&base.place.url);
            // Of sessions, because sqlx keeps its statements prepared; and sqlx asks for floats in a way that PgBouncer does not know.
            let settings = [("pool_mode", "session"), ("ignore_startup_parameters", "extra_float_digits")];
            let bouncer = PgBouncer::start(&proxy.url_of(&base.place.url), &settings);
            let node = simple(&B::by(&base, &bouncer.url(), 8), Profile::Ietf).await;
            let call = Call::post("/charges").key("k");
            proxy.cut_at(b"COMMIT", 1, cut);
            let first = call.send(node.addr).await;
            proxy.fired();
            assert_eq!(first.status, status, "{first:?}");
            let again = call.send_until_settled(node.addr).await;
            assert_eq!((again.status, again.is_replay()), (200, status == 200), "{again:?}");
            assert_eq!(expect_one_to_one(&base).await, ["k"]);
        }
    }
}
