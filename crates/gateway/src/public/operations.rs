//! `GET /.oncegate/operations/{id}`: a caller's own operation. Another tenant's is as absent as one that never was.

use http::{Method, Request, StatusCode};
use oncegate::AnyStore;
use oncegate_core::identity::RecordId;
use oncegate_core::problem::{Code, Problem};
use oncegate_engine::Engine;
use oncegate_tower::scope::Tenant;

use super::{Answer, ClientBody, OPERATIONS, own, refusal};
use crate::config::ScopeRule;
use crate::record;

pub(super) async fn answer(
    engine: &Engine<AnyStore>,
    scope: &ScopeRule,
    request: Request<ClientBody>,
) -> Answer {
    let (head, body) = request.into_parts();
    oncegate_tower::leave(&head.headers, body).await;
    let id = head.uri.path().strip_prefix(OPERATIONS).and_then(|id| id.parse::<RecordId>().ok());
    let (Some(id), &Method::GET | &Method::HEAD) = (id, &head.method) else {
        return refusal(&not_found());
    };
    let Some(tenant) = scope.of(&head) else {
        let advice = scope.advice(&head);
        let words = format!(
            "Operations are shown to whom they belong, and this request does not say who asks. {advice}."
        );
        return refusal(&Problem::new(Code::ScopeMissing, words));
    };
    match engine.read(id).await {
        Ok(Some(row)) if row.address.scope.tenant_str() == tenant => {
            let shown = record::for_owner(&row, engine.now());
            own(StatusCode::OK, "application/json", shown.to_string().into_bytes())
        }
        Ok(_) => refusal(&not_found()),
        Err(error) => {
            tracing::warn!(%error, "an operation could not be read");
            let words = "The record could not be read right now. Ask again later.";
            let problem = Problem::new(Code::StoreUnavailable, words);
            refusal(&problem.retry_after(std::time::Duration::from_secs(5)))
        }
    }
}

fn not_found() -> Problem {
    let words = "There is no operation of yours with this id. Paths under /.oncegate/ are the gateway's own, and are never forwarded.";
    Problem::new(Code::OperationNotFound, words)
}
