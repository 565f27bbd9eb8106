//! What a client reads: answers of HTTP/1.1, strictly.

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) is_problem: bool,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// `None`: as it should be. A refusal tells the client why in a problem document.
    pub(crate) fn wrong(&self) -> Option<String> {
        let is_described = self.is_problem && is_problem(&self.body, self.status);
        (self.status >= 400 && !is_described).then(|| {
            format!(
                "the refusal {} has no problem document: {:?}",
                self.status,
                String::from_utf8_lossy(&self.body)
            )
        })
    }
}

/// Whether this is a problem document for this status, with a code and words.
pub(crate) fn is_problem(body: &[u8], status: u16) -> bool {
    let document: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    document["code"].is_string() && document["detail"].is_string() && document["status"] == status
}

/// The whole answers at the front of the bytes. An answer is also over when the connection is.
pub(crate) fn answers(mut bytes: &[u8], is_over: bool) -> Vec<Answer> {
    let mut answers = Vec::new();
    while let Some((answer, taken)) = answer(bytes, is_over) {
        answers.push(answer);
        bytes = &bytes[taken..];
    }
    answers
}

fn answer(bytes: &[u8], is_over: bool) -> Option<(Answer, usize)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = str::from_utf8(&bytes[..end]).expect("a head in ASCII").to_ascii_lowercase();
    let status = head.strip_prefix("http/1.").expect("HTTP/1")[2..5].parse().expect("a status");
    let value = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let is_problem = value("content-type") == Some("application/problem+json");
    let rest = &bytes[end..];
    let (body, taken) = if matches!(status, 100..200 | 204 | 304) {
        (&[][..], 0)
    } else if let Some(length) = value("content-length") {
        let length = length.parse().expect("a length");
        (rest.get(..length)?, length)
    } else if is_over {
        (rest, rest.len())
    } else {
        return None;
    };
    Some((Answer { status, is_problem, body: body.to_vec() }, end + taken))
}
