//! The admin interface, described for tools.

use axum::http::header;
use axum::response::IntoResponse;

/// `GET /api/v1/openapi.json`; a test holds it against the routes.
pub(super) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json"))
}
