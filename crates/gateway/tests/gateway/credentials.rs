//! What becomes of callers that the upstream refuses.

use serde_json::{Value, json};

use crate::client::{Call, within};
use crate::gateway::{Stage, defaults};
use crate::reply::Reply;
use crate::upstream::{Act, Seen, Upstream, answer};

/// An upstream that refuses every caller.
async fn refusing(status: u16) -> Upstream {
    Upstream::start(move |_: Seen| async move { Act::Answer(answer(status, &[], "")) }).await
}

fn accepted(reply: &Reply) -> String {
    assert_eq!(reply.status, 202, "{reply:?}");
    reply.header("location").unwrap().to_owned()
}

/// The record of `one` once nobody is running it.
async fn settled(stage: &Stage) -> Value {
    within(async {
        loop {
            let record = stage.record("one").await.unwrap();
            if record["state"] != "in_progress" {
                return record;
            }
        }
    })
    .await
}

/// With credentials that are refused it was sent again for a day.
#[tokio::test]
async fn attack_33_a_caller_that_is_refused_twice_is_parked() {
    for status in [401, 403] {
        let stage = Stage::new(refusing(status).await, &defaults("accepted", "")).await;
        let location = accepted(&stage.send(&Call::pay("one")).await);
        stage.upstream.ran(2).await;
        let record = settled(&stage).await;
        assert_eq!((&record["state"], &record["attempts"]), (&json!("unknown"), &json!(2)), "{record}");
        assert_eq!(record["doubt"]["parked"], true, "{record}");
        let why = &record["last_error"];
        assert_eq!(why["code"], "caller_refused", "{record}");
        let detail = why["detail"].as_str().unwrap();
        assert!(detail.contains(&status.to_string()) && detail.contains("not tried again"), "{detail}");
        let story = crate::acts::story(&stage, &record).await;
        let last = story.last().unwrap();
        assert_eq!((&last["act"], &last["to"]), (&json!("released"), &json!("unknown")), "{story:#?}");
        assert_eq!(last["remarks"], json!(["parked: it waits for an operator"]), "{story:#?}");
        // Its client is not told that it failed: an operator decides.
        let reply = stage.send(&Call::get(&location)).await;
        assert_eq!((reply.status, &reply.json()["state"]), (202, &json!("unknown")), "{reply:?}");
        assert_eq!(stage.runs(), 2);
    }
}

/// `Authorization: made-up` left a row for the whole retention.
#[tokio::test]
async fn rows_of_refused_callers_live_for_seconds() {
    let lifetime = |record: &Value| {
        let moment = |name: &str| humantime::parse_rfc3339(record[name].as_str().unwrap()).unwrap();
        moment("expires_at").duration_since(moment("settled_at")).unwrap().as_secs()
    };
    for (status, seconds) in
        [(401, 10), (403, 10), (407, 10), (405, 86_400), (429, 86_400), (503, 86_400), (404, 86_400)]
    {
        let stage = Stage::new(refusing(status).await, "").await;
        let made_up = Call::anonymous("POST", "/payments").header("authorization", "made-up").key("one");
        assert_eq!(stage.send(&made_up).await.status, status);
        let record = stage.record("one").await.unwrap();
        assert_eq!(lifetime(&record), seconds, "{status}: {record}");
        // A retry executes again, but of what is stored: a 404 is an answer.
        assert_eq!(stage.send(&made_up).await.status, status);
        let runs = if status == 404 { 1 } else { 2 };
        assert_eq!(
            (stage.runs(), lifetime(&stage.record("one").await.unwrap())),
            (runs, seconds),
            "{status}"
        );
    }
}
