//! The messenger: takes the gateway's questions to the API, and brings the answers back, as quickly as the story says.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use example_payments::post::send;
use hyper::body::Bytes;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::town::{FOREVER, Town};

/// What the messenger does with what it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Asks, and brings the answer, at once.
    AtOnce,
    /// Keeps questions: nobody has been asked yet.
    KeepsQuestions,
    /// Asks at once, and keeps the answers: they are what was true then.
    KeepsAnswers,
}

pub(crate) struct Messenger {
    pub(crate) address: SocketAddr,
    way: Arc<Way>,
}

struct Way {
    api: SocketAddr,
    pace: watch::Sender<Pace>,
    /// How many questions and answers it holds back.
    kept: watch::Sender<usize>,
}

impl Messenger {
    pub(crate) async fn starts(api: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let way = Way { api, pace: watch::Sender::new(Pace::AtOnce), kept: watch::Sender::new(0) };
        let way = Arc::new(way);
        let routes = Router::new().fallback(carry).with_state(Arc::clone(&way));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { address, way }
    }

    pub(crate) fn goes(&self, pace: Pace) {
        self.way.pace.send_replace(pace);
    }

    /// Waits until it holds a question, or an answer, back.
    pub(crate) fn keeps_one(&self, town: &Town) {
        let mut kept = self.way.kept.subscribe();
        let kept = async { tokio::time::timeout(FOREVER, kept.wait_for(|kept| *kept == 1)).await.is_ok() };
        assert!(town.runtime.block_on(kept), "the gateway asks in a minute");
    }
}

async fn carry(State(way): State<Arc<Way>>, question: Request) -> Response {
    way.pass(Pace::KeepsQuestions).await;
    let (head, _) = question.into_parts();
    let question = Request::from_parts(head, Bytes::new());
    let answer = send(&way.api.to_string(), question, FOREVER).await;
    way.pass(Pace::KeepsAnswers).await;
    match answer {
        Ok(reply) => (reply.status, reply.headers, reply.body).into_response(),
        Err(why) => (StatusCode::BAD_GATEWAY, why.to_string()).into_response(),
    }
}

impl Way {
    /// Goes on when the pace is another one.
    async fn pass(&self, keeps: Pace) {
        let mut pace = self.pace.subscribe();
        if *pace.borrow_and_update() != keeps {
            return;
        }
        self.kept.send_modify(|kept| *kept += 1);
        let _changed = pace.wait_for(|pace| *pace != keeps).await;
        self.kept.send_modify(|kept| *kept -= 1);
    }
}
