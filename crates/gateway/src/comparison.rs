//! The end of a run of `oncegate compare`, as JSON, and as an entry of the audit trail.

use oncegate_core::audit::Comparison;
use oncegate_core::time::Timestamp;
use oncegate_store::{Store, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};

/// The longest that is read.
pub(crate) const COMPARISON_BYTES_MAX: usize = 4_096;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Typed {
    name: String,
    charges: u64,
    records: u64,
    differences: u64,
    unreadable: u64,
}

/// As it is sent to a gateway.
#[must_use]
pub fn comparison_json(run: &Comparison) -> Value {
    let Comparison { name, charges, records, differences, unreadable } = run;
    json!({
        "name": name,
        "charges": charges,
        "records": records,
        "differences": differences,
        "unreadable": unreadable,
    })
}

/// Reads what [`comparison_json`] wrote.
pub(crate) fn read_comparison(body: &[u8]) -> Result<Comparison, String> {
    let typed: Typed = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let Typed { name, charges, records, differences, unreadable } = typed;
    check_name(&name)?;
    Ok(Comparison { name: name.into(), charges, records, differences, unreadable })
}

/// Whether a comparison may be called this; if not, what is expected.
pub fn check_name(name: &str) -> Result<(), String> {
    if Comparison::is_name(name) {
        return Ok(());
    }
    Err(format!(
        "{name:?} cannot name a comparison: expected 1 to {} letters, digits, '-', '_' and '.'",
        Comparison::NAME_BYTES_MAX
    ))
}

/// Adds the entry of a run that has ended; says under which time.
pub async fn record<S: Store>(store: &S, run: &Comparison, node: &str) -> Result<Timestamp, StoreError> {
    let at = store.clock().await?;
    store.tell(&[run.entry(at, node)]).await?;
    Ok(at)
}
