//! Who may see records.

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::Admin;
use super::api::problem;

/// Lets a request pass that shows the token, or any where there is none.
pub(super) async fn check(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let Some(token) = &admin.0.token else { return next.run(request).await };
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    // Digests are compared, so that the time it takes tells nothing about the token.
    let is_right = shown.is_some_and(|shown| Sha256::digest(shown) == Sha256::digest(token.expose()));
    if is_right {
        return next.run(request).await;
    }
    let words = "This needs the admin token: send `Authorization: Bearer TOKEN`, with the token of `admin.token_file` or \
                 ONCEGATE_ADMIN_TOKEN.";
    let refused = problem(StatusCode::UNAUTHORIZED, "Who asks?", words);
    ([(header::WWW_AUTHENTICATE, "Bearer")], refused).into_response()
}
