//! Serves a router, and can close a connection without an answer.

use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

/// Put into a response's extensions: its connection is closed, and it is not sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoAnswer;

/// A server that is running. It ends when this is dropped, and its connections with it: whoever waits gets no answer.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Serving {
    /// Listens, and serves these routes until it is stopped or dropped.
    pub async fn start(listen: SocketAddr, routes: Router) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            // Dropped with this task.
            let mut connections = JoinSet::new();
            loop {
                while connections.try_join_next().is_some() {}
                // An error of one client's connection is not ours.
                let Ok((stream, _)) = listener.accept().await else { continue };
                let routes = routes.clone();
                connections.spawn(async move {
                    let routes = TowerToHyperService::new(routes);
                    let service = hyper::service::service_fn(move |request| {
                        let answer = hyper::service::Service::call(&routes, request);
                        async move { answer.await.map_err(io::Error::other).and_then(unless_silent) }
                    });
                    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
                });
            }
        });
        Ok(Self { address, accepting })
    }

    /// Where.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it, as a crash would; when this returns its port is free.
    pub async fn stop(mut self) {
        self.accepting.abort();
        let _ended = (&mut self.accepting).await;
    }

    /// Until the process ends.
    pub async fn forever(self) {
        std::future::pending::<()>().await;
        drop(self);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn unless_silent(response: Response<Body>) -> io::Result<Response<Body>> {
    match response.extensions().get::<NoAnswer>() {
        Some(NoAnswer) => Err(io::ErrorKind::ConnectionReset.into()),
        None => Ok(response),
    }
}
