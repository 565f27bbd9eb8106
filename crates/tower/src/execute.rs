//! Step 7: run it, in a task of its own. A client that hangs up cancels nothing.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::request;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use http_body_util::BodyExt as _;
use oncegate_core::classify::Failure;
use oncegate_core::key::Key;
use oncegate_engine::Held;
use oncegate_store::Store;
use tower_service::Service;

use crate::attempt::{Attempt, Failed};
use crate::body::{BoxError, RequestBody};

/// How an attempt ended.
pub(crate) enum Ended<B> {
    /// With an answer.
    Answered { head: http::response::Parts, body: Read<B> },
    /// Without one.
    Failed(Failure),
}

/// What was read of an answer's body.
pub(crate) enum Read<B> {
    /// All of it.
    Whole(Bytes),
    /// More than is kept.
    TooLarge { first: Bytes, rest: Pin<Box<B>> },
}

/// What is run.
pub(crate) struct Work<B> {
    pub(crate) head: request::Parts,
    pub(crate) body: Bytes,
    pub(crate) key: Key,
    /// Only so that the inner service's body type is known.
    pub(crate) of: std::marker::PhantomData<fn(B)>,
}

/// Runs the inner service under the lease and reads its answer, renewing meanwhile.
pub(crate) async fn run<S, V, B, A>(held: &mut Held<S>, mut inner: V, work: Work<B>) -> Ended<A>
where
    S: Store,
    V: Service<Request<RequestBody<B>>, Response = Response<A>>,
    V::Error: Into<BoxError>,
    A: Body<Data = Bytes>,
    A::Error: Into<BoxError>,
{
    let answer_bytes_max = held.policy().answer_bytes_max;
    let request = request(held, work);
    if held.begin().is_err() {
        return Ended::Failed(Failure::LeaseEnded);
    }
    let attempt = async {
        match inner.call(request).await {
            Ok(response) => read(response, answer_bytes_max).await,
            Err(error) => Ended::Failed(failure_of(&*error.into())),
        }
    };
    let ended = held.run(AssertUnwindSafe(attempt).catch_unwind()).await;
    ended.unwrap_or(Ended::Failed(Failure::Panic))
}

fn request<S: Store, B>(held: &Held<S>, work: Work<B>) -> Request<RequestBody<B>> {
    let Work { mut head, body, key, .. } = work;
    ask_for_identity(&mut head);
    let lease = held.lease();
    head.extensions.insert(Attempt {
        key,
        record: held.id(),
        life: lease.holder.life,
        fence: lease.holder.fence,
        number: lease.attempt,
        forward_key: held.policy().forward_key,
        deadline: held.policy().attempt_deadline,
        answer_bytes_max: held.policy().answer_bytes_max,
        permit: held.permit(),
    });
    Request::from_parts(head, RequestBody::whole(body))
}

/// A kept answer must suit every client that asks again.
pub(crate) fn ask_for_identity(head: &mut request::Parts) {
    head.headers.insert(http::header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
}

pub(crate) async fn read<A>(response: Response<A>, bytes_max: u64) -> Ended<A>
where
    A: Body<Data = Bytes>,
    A::Error: Into<BoxError>,
{
    let (head, body) = response.into_parts();
    let mut body = Box::pin(body);
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Ended::Failed(Failure::Truncated) };
        let Ok(data) = frame.into_data() else { continue };
        all.extend_from_slice(&data);
        if all.len() as u64 > bytes_max {
            return Ended::Answered { head, body: Read::TooLarge { first: all.freeze(), rest: body } };
        }
    }
    Ended::Answered { head, body: Read::Whole(all.freeze()) }
}

/// Only an error that proves it says that nothing was sent.
fn failure_of(error: &(dyn std::error::Error + 'static)) -> Failure {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(Failed(failure)) = error.downcast_ref::<Failed>() {
            return *failure;
        }
        cause = error.source();
    }
    Failure::Service
}
