//! Step 8: what the ending means.

use std::sync::Arc;

use oncegate_core::classify::{self, Class, Ending, Outcome};
use oncegate_core::policy::Policy;
use oncegate_core::response::{Answer, Response};
use oncegate_engine::Settlement;

use crate::answer::STATE;
use crate::execute::{Ended, Read};
use crate::headers;

/// How the attempt is to be settled. Takes the upstream's own account out of the answer: it is not the client's.
pub(crate) fn of<B>(policy: &Policy, ended: &mut Ended<B>) -> Settlement {
    let ending = match ended {
        Ended::Failed(failure) => Ending::Failed(*failure),
        Ended::Answered { head, .. } => {
            let outcome = headers::take_account(&mut head.headers, policy.replayed_header);
            head.headers.remove(STATE);
            Ending::Answered { status: head.status.as_u16(), outcome }
        }
    };
    match classify::classify(policy, &ending) {
        Class::Complete => match answer(policy, ended) {
            Some(answer) => Settlement::Complete(Arc::new(answer)),
            // No classification completes an attempt that has no answer.
            None => Settlement::Doubt(oncegate_core::record::Reason::new("failed", "no answer")),
        },
        Class::Release(reason) => Settlement::Release { reason, backoff: std::time::Duration::ZERO },
        Class::Doubt(reason) if says_unknown(&ending) => Settlement::Unknown(reason),
        Class::Doubt(reason) => Settlement::Doubt(reason),
    }
}

const fn says_unknown(ending: &Ending) -> bool {
    matches!(ending, Ending::Answered { outcome: Some(Outcome::Unknown), .. })
}

/// What is kept of an answer: copies, so that no connection's buffer is kept alive by a stored answer.
fn answer<B>(policy: &Policy, ended: &Ended<B>) -> Option<Answer> {
    let Ended::Answered { head, body } = ended else { return None };
    let status = head.status.as_u16();
    Some(match body {
        Read::Whole(body) => Answer::Kept(Response {
            status,
            headers: headers::kept(&head.headers, policy.keeps_cookies),
            body: body.to_vec(),
        }),
        Read::TooLarge { .. } => {
            let location = head.headers.get(http::header::LOCATION);
            Answer::NotKept { status, location: location.map(|value| value.as_bytes().to_vec()) }
        }
    })
}
