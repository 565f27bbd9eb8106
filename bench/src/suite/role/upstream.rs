//! The API behind: reads a request, answers with as many bytes as its path says, or with 200.

use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::Outcome;

/// One thread: it has nothing to do, and shares the machine with those who have.
pub(super) fn run() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let answers = Rc::new(Answers::new());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let answers = Rc::clone(&answers);
            tokio::task::spawn_local(async move {
                let service = service_fn(move |request| answer(Rc::clone(&answers), request));
                drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
            });
        }
    })
}

async fn answer(
    answers: Rc<Answers>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    drop(body.collect().await);
    Ok(answers.of(&head.method, head.uri.path()))
}

/// Bodies, made once.
pub(super) struct Answers(HashMap<usize, Bytes>);

impl Answers {
    pub(super) fn new() -> Self {
        Self([200, 4096, 65_536].into_iter().map(|bytes| (bytes, json(bytes))).collect())
    }

    pub(super) fn of(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let bytes = path.rsplit('/').next().and_then(|last| last.parse().ok()).unwrap_or(200);
        let body = self.0.get(&bytes).cloned().unwrap_or_default();
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = if *method == Method::GET { StatusCode::OK } else { StatusCode::CREATED };
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}

fn json(bytes: usize) -> Bytes {
    let (start, end) = (r#"{"id":"pay_0123456789","status":"succeeded","note":""#, r#""}"#);
    let filling = "x".repeat(bytes.saturating_sub(start.len() + end.len()));
    Bytes::from([start, &filling, end].concat())
}

#[cfg(test)]
mod tests {
    #[test]
    fn answers_have_the_promised_size() {
        assert_eq!([200, 4096, 65_536].map(|bytes| super::json(bytes).len()), [200, 4096, 65_536]);
    }
}
