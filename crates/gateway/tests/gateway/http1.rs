//! HTTP/1.1 over any stream.

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::client::within;
use crate::http2;
use crate::reply::Reply;

/// A client whose connection stays open.
pub(crate) struct Http1(SendRequest<Empty<Bytes>>);

impl Http1 {
    pub(crate) async fn over<T>(stream: T) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let shaking = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (sender, connection) = within(shaking).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    pub(crate) async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let sending = self.0.send_request(request.body(Empty::new()).unwrap());
        http2::reply(within(sending).await.unwrap()).await
    }
}
