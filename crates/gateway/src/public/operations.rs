//! `/.oncegate/operations/{id}`: a caller's own operation. `GET` of an accepted one gives its state and then its answer, of any other a
//! description; `DELETE` takes back what nobody has begun. Another tenant's is as absent as one that never was.

use http::{Method, Request};
use http_body_util::Either;
use oncegate_core::identity::RecordId;
use oncegate_core::problem::{Code, Problem};
use oncegate_tower::RequestLimit as _;

use super::{Answer, ClientBody, Current, OPERATIONS, Public, refusal};

pub(super) async fn answer(public: &Public, current: &Current, request: Request<ClientBody>) -> Answer {
    let (head, body) = request.into_parts();
    oncegate_tower::leave(&head.headers, body).await;
    let Some(_place) = public.limiter.admit() else { return refusal(&Problem::overloaded()) };
    let id = head.uri.path().strip_prefix(OPERATIONS).and_then(|id| id.parse::<RecordId>().ok());
    let (Some(id), &Method::GET | &Method::HEAD | &Method::DELETE) = (id, &head.method) else {
        return refusal(&not_found());
    };
    let row = match current.layer.find_operation(&head, id).await {
        Ok(row) => row,
        Err(problem) if problem.code() == Code::OperationNotFound => return refusal(&not_found()),
        Err(problem) => return refusal(&problem),
    };
    if let Err(denied) = current.layer.authorize_operation(&head, &row).await {
        let mut refused = refusal(&denied.problem);
        denied.challenge(refused.headers_mut());
        return refused;
    }
    if head.method == Method::DELETE {
        return current.layer.cancel_operation(&row).await.map(Either::Left);
    }
    current.layer.show_operation(&head, row).await.map(Either::Left)
}

fn not_found() -> Problem {
    let words = "There is no operation of yours with this id. Paths under /.oncegate/ are the gateway's own, and are never forwarded.";
    Problem::new(Code::OperationNotFound, words)
}
