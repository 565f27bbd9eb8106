//! Step 9: settled, durably, before the answer leaves.

use http::Response;
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
    match held.settle_within(settlement, about.policy.patience).await {
        Ok(Settled::Done(row)) => answer::own(ended, &row, about),
        Ok(Settled::Fenced(row)) => answer::from_row(row.as_deref(), about),
        Err(StillSettling) => answer::unknown_first(about),
    }
}
