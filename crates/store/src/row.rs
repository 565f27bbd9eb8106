//! What a store keeps of a record in columns, for databases that search by columns.
//!
//! A database decides by the id, the version, the state and the moment at which a worker should
//! look. All else of a record is its body, [`Record::encode_body`], and its response, in an
//! encoding that every store shares. The numbers of states in rows and in SQL come from here
//! alone.

use oncegate_core::record::codec::{state_kind, state_number};
use oncegate_core::record::{Record, State, StateKind};

/// Set in the column of a record in progress that the completer goes on with when its lease has
/// lapsed. The sweeper looks for those without it.
pub const RESUMABLE: i16 = 16;

/// The number of a state in its column and in SQL.
#[must_use]
pub const fn number_of(state: StateKind) -> i16 {
    state_number(state) as i16
}

/// The value of the column `state`.
#[must_use]
pub fn state_column(record: &Record) -> i16 {
    let number = number_of(record.state.kind());
    match record.state {
        State::InProgress if record.is_resumable() => number | RESUMABLE,
        _ => number,
    }
}

/// The state that a value of the column `state` stands for.
#[must_use]
pub fn state_of(column: i16) -> Option<StateKind> {
    u8::try_from(column & !RESUMABLE).ok().and_then(state_kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_a_number_of_its_own_with_and_without_the_completers_bit() {
        for state in StateKind::ALL {
            assert_eq!(state_of(number_of(state)), Some(state));
            assert_eq!(state_of(number_of(state) | RESUMABLE), Some(state));
        }
        assert_eq!(state_of(9), None);
        assert_eq!(state_of(-1), None);
    }
}
