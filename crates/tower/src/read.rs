//! Step 4: the body, whole, within its limit. And what is left of one that is refused.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body;
use http_body_util::BodyExt as _;
use oncegate_core::problem::{Code, Problem};

use crate::body::BoxError;

/// Of a refused request so much is read and dropped, so that a client that is still sending can read the refusal…
const DRAIN_BYTES_MAX: u64 = 16 << 20;
/// …and for no longer than this.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// An error of a request's body that says how its request is refused, such as one that comes too
/// slowly. What still comes is not read then.
#[derive(Debug)]
pub struct RefusedBody(pub Problem);

impl fmt::Display for RefusedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.code().title())
    }
}

impl Error for RefusedBody {}

/// Reads a request's body. A refusal has drained it, unless the body itself was refused.
pub(crate) async fn whole<B>(headers: &HeaderMap, body: B, bytes_max: u64) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut body = std::pin::pin!(body);
    let declared =
        headers.get(http::header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: u64| bytes > bytes_max) {
        Box::pin(leave(headers, body)).await;
        return Err(too_large(bytes_max));
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| refused_or_broken(error.into()))?;
        let Ok(data) = frame.into_data() else { continue };
        if (first.len() + all.len() + data.len()) as u64 > bytes_max {
            Box::pin(drain(body)).await;
            return Err(too_large(bytes_max));
        }
        match (first.is_empty(), all.is_empty()) {
            // Most bodies are one frame, which is not copied.
            (true, true) => first = data,
            (_, true) => {
                all.extend_from_slice(&first);
                all.extend_from_slice(&data);
                first = Bytes::new();
            }
            (_, false) => all.extend_from_slice(&data),
        }
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

/// Leaves a request's body that nobody has begun to read, and will not: for a refusal. So much is read and dropped that a client which
/// is still sending can read its answer; a client that asked first (`Expect`) has sent nothing yet, and is not told to.
pub async fn leave<B>(headers: &HeaderMap, body: B)
where
    B: Body<Data = Bytes>,
{
    let expectation = headers.get(http::header::EXPECT);
    if !expectation.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        drain(body).await;
    }
}

/// Reads and drops what is left of a body, within bounds. A server that answers while the client is sending and then closes makes
/// the client see a reset instead of the answer.
async fn drain<B>(body: B)
where
    B: Body<Data = Bytes>,
{
    let draining = async {
        let mut body = std::pin::pin!(body);
        let mut drained = 0_u64;
        while let Some(Ok(frame)) = body.frame().await {
            drained += frame.data_ref().map_or(0, |data| data.len() as u64);
            if drained > DRAIN_BYTES_MAX {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, draining).await;
}

fn too_large(bytes_max: u64) -> Problem {
    let words = format!(
        "The body is larger than the {bytes_max} bytes that this route takes. Nothing was executed, and the key is unused."
    );
    Problem::new(Code::TooLarge, words)
}

fn refused_or_broken(error: BoxError) -> Problem {
    let error = match error.downcast::<RefusedBody>() {
        Ok(refused) => return refused.0,
        Err(error) => error,
    };
    if is_malformed(&error) {
        let words = "The chunks or trailers of the body are not valid HTTP, so that another server might read \
                     another request. Nothing was executed.";
        return Problem::new(Code::RequestMalformed, words);
    }
    let words =
        format!("The body broke off ({error}). Nothing was executed. Send it again with the same key.");
    Problem::new(Code::RequestInvalid, words)
}

/// Whether the error of a request's body says that its framing is not valid HTTP, and not that its
/// client fell silent or hung up. By the errors of hyper's decoder.
#[must_use]
pub fn is_malformed(error: &BoxError) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(&**error);
    while let Some(cause) = next {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)) {
            return true;
        }
        next = cause.source();
    }
    false
}
