//! WebSockets and the like: a request that no route protects may turn its connection into a tunnel.

use http::header::UPGRADE;
use http::{HeaderValue, Request, Response, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use oncegate_tower::headers::connection_options;

use crate::public::Room;

/// A client that wants to speak something else from here on.
pub(super) struct Tunnel {
    pub(super) protocol: HeaderValue,
    client: OnUpgrade,
    room: Option<Room>,
}

/// Whether the request asks for it.
pub(super) fn asked_for<B>(request: &mut Request<B>) -> Option<Tunnel> {
    let asks = connection_options(request.headers()).any(|option| option.eq_ignore_ascii_case("upgrade"));
    if request.version() != Version::HTTP_11 || !asks {
        return None;
    }
    let protocol = request.headers().get(UPGRADE)?.clone();
    // Any other, h2c above all, would be a way round everything that this gateway does.
    if !protocol.as_bytes().eq_ignore_ascii_case(b"websocket") {
        return None;
    }
    let room = request.extensions_mut().remove::<Room>();
    Some(Tunnel { protocol, client: hyper::upgrade::on(request), room })
}

impl Tunnel {
    /// The upstream has agreed: from here on bytes pass both ways until either end closes.
    pub(super) fn join<B>(self, response: &mut Response<B>) {
        let upstream = hyper::upgrade::on(response);
        tokio::spawn(async move {
            let _room = self.room;
            let (client, upstream) = match tokio::try_join!(self.client, upstream) {
                Ok(ends) => ends,
                Err(error) => return tracing::debug!(%error, "a tunnel could not be made"),
            };
            let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
            if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut upstream).await {
                tracing::debug!(%error, "a tunnel ended");
            }
        });
    }
}
