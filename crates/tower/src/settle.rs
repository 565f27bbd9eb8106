//! Step 9: settled, durably, before the answer leaves.

use http::Response;
use oncegate_core::record::StateKind;
use oncegate_engine::{Held, Settled, Settlement, StillSettling};
use oncegate_store::Store;

use crate::answer::{self, About};
use crate::body::ResponseBody;
use crate::execute::Ended;

/// Settles, and gives the client's answer: its own only if the record agrees with it.
pub(crate) async fn and_answer<S: Store, B>(
    held: Box<Held<S>>,
    settlement: Settlement,
    ended: Ended<B>,
    about: &About<'_>,
) -> Response<ResponseBody<B>> {
    let is_parked = matches!(settlement, Settlement::Park(_));
    match held.settle_within(settlement, about.policy.patience).await {
        Ok(Settled::Done(_)) if is_parked => answer::unsettled(about),
        // Some of it was done, and a worker goes on: not what the handler can know.
        Ok(Settled::Done(row)) if row.state.kind() == StateKind::Pending => {
            answer::from_row(Some(&row), about)
        }
        Ok(Settled::Done(row)) => answer::own(ended, &row, about),
        Ok(Settled::Fenced(row)) => answer::from_row(row.as_deref(), about),
        Err(StillSettling) => answer::unknown_first(about),
    }
}
