//! The messenger: takes the gateway's questions to the API, and brings the answers back, as quickly as the story says.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

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
    /// Keeps what it holds already; whatever comes now goes at once.
    KeepsWhatItHas,
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
    /// How many it has held back so far, and how many of those, the oldest first, it has been told to let go.
    held: AtomicUsize,
    let_go: watch::Sender<usize>,
    questions: Mutex<Questions>,
}

/// What it was asked to ask.
#[derive(Default)]
struct Questions {
    count: usize,
    /// How many of each are on their way.
    under_way: HashMap<String, usize>,
    most_at_once: usize,
}

impl Messenger {
    pub(crate) async fn starts(api: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let way = Arc::new(Way {
            api,
            pace: watch::Sender::new(Pace::AtOnce),
            kept: watch::Sender::new(0),
            held: AtomicUsize::new(0),
            let_go: watch::Sender::new(0),
            questions: Mutex::default(),
        });
        let routes = Router::new().fallback(carry).with_state(Arc::clone(&way));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { address, way }
    }

    pub(crate) fn goes(&self, pace: Pace) {
        self.way.pace.send_replace(pace);
    }

    /// Waits until it holds so many questions, or answers, back.
    pub(crate) fn keeps(&self, town: &Town, count: usize) {
        let mut kept = self.way.kept.subscribe();
        let kept =
            async { tokio::time::timeout(FOREVER, kept.wait_for(|kept| *kept == count)).await.is_ok() };
        assert!(town.runtime.block_on(kept), "the gateway asks in a minute");
    }

    /// Lets go of what it has held for longest, and of nothing else.
    pub(crate) fn lets_go_of_the_oldest(&self) {
        self.way.let_go.send_modify(|count| *count += 1);
    }

    /// How many questions there have been.
    pub(crate) fn questions(&self) -> usize {
        self.way.questions.lock().unwrap().count
    }

    /// How many have asked the same at the same time, at most.
    pub(crate) fn most_at_once(&self) -> usize {
        self.way.questions.lock().unwrap().most_at_once
    }
}

async fn carry(State(way): State<Arc<Way>>, question: Request) -> Response {
    let _asked = Asked::new(&way, question.uri().to_string());
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
    /// Holds it back if that is the pace now, until all is to go at once.
    async fn pass(&self, keeps: Pace) {
        let mut pace = self.pace.subscribe();
        if *pace.borrow_and_update() != keeps {
            return;
        }
        let _kept = Kept::new(&self.kept);
        let before = self.held.fetch_add(1, Ordering::SeqCst);
        let mut let_go = self.let_go.subscribe();
        tokio::select! {
            _ = pace.wait_for(|pace| *pace == Pace::AtOnce) => {}
            _ = let_go.wait_for(|count| *count > before) => {}
        }
    }
}

/// Something that is held back. Whoever asked may be gone before it is let go: then this is dropped too.
struct Kept<'a>(&'a watch::Sender<usize>);

impl<'a> Kept<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|kept| *kept += 1);
        Self(count)
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|kept| *kept -= 1);
    }
}

/// A question under way, until it is answered, or its asker is gone.
struct Asked<'a> {
    way: &'a Way,
    what: String,
}

impl<'a> Asked<'a> {
    fn new(way: &'a Way, what: String) -> Self {
        let mut questions = way.questions.lock().unwrap();
        questions.count += 1;
        let at_once = questions.under_way.entry(what.clone()).or_default();
        *at_once += 1;
        let at_once = *at_once;
        questions.most_at_once = questions.most_at_once.max(at_once);
        Self { way, what }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        *self.way.questions.lock().unwrap().under_way.get_mut(&self.what).unwrap() -= 1;
    }
}
