//! Reading rows and scanning what is due, wherever they are.

use oncegate_core::identity::RecordId;
use oncegate_core::record::Record;
use oncegate_store::{Due, Moments, Scan};
use rusqlite::Connection;

use super::append::reserved::{Held, Row};
use super::append::{Found as Place, Shared, due as appended, settled};
use super::error::Failure;
use super::statements::{self, Found, in_order, read_one};

/// One place per id, in order.
pub(super) fn read(
    connection: &Connection,
    shared: &Shared,
    ids: &[RecordId],
) -> Result<Vec<Found>, Failure> {
    let look = |memory: &super::append::Memory| {
        let places: Vec<Place> = ids.iter().map(|id| memory.find(*id)).collect();
        (places, memory.reserved.damaged())
    };
    shared.looking(connection, look, |tx, _, (places, damaged)| {
        let read = |(id, place): (&RecordId, Place)| {
            Ok(match (read_at(tx, *id, place)?, damaged) {
                (Ok(None), Some(problem)) => Err(problem.into()),
                (found, _) => found,
            })
        };
        ids.iter().zip(places).map(read).collect()
    })
}

/// The row that is there. What `record_settled` no longer has, `record` may have.
pub(super) fn read_at(connection: &Connection, id: RecordId, place: Place) -> Result<Found, Failure> {
    match place {
        Place::InFlight(held) => Ok(in_flight(&held).map(Some)),
        Place::SettledAt(seq) => match settled::read(connection, seq, id)? {
            Some(row) => Ok(row.map(Some).map_err(Failure::from)),
            None => read_one(connection, id),
        },
        Place::Elsewhere => read_one(connection, id),
    }
}

pub(super) fn in_flight(held: &Held) -> Result<Record, Failure> {
    match &held.row {
        Row::Readable(record) => Ok(Record::clone(record)),
        Row::Unreadable { problem, .. } => Err((*problem).into()),
    }
}

pub(super) fn due(
    connection: &Connection,
    shared: &Shared,
    what: Due,
    moments: Moments,
    limit: usize,
) -> Result<Scan, Failure> {
    match what {
        // Whoever waits, or is in doubt, or has a request that is kept, is in `record`.
        Due::Pending | Due::Doubted | Due::Resumable => statements::due(connection, what, moments, limit),
        Due::Lapsed => {
            let look = |memory: &_| appended::lapsed(memory, what, moments);
            shared.looking(connection, look, |tx, _, (rows, unreadable)| {
                let mut scan = statements::due(tx, what, moments, limit)?;
                scan.records.extend(rows.iter().map(|row| Record::clone(row)));
                scan.unreadable += unreadable;
                in_order(&mut scan, what, limit);
                Ok(scan)
            })
        }
        Due::Expired => {
            let tx = connection.unchecked_transaction()?;
            let mut scan = statements::due(&tx, what, moments, limit)?;
            let ledger = super::append::Ledger::read(&tx)?;
            appended::expired(&tx, &ledger, moments, limit, &mut scan)?;
            in_order(&mut scan, what, limit);
            tx.finish()?;
            Ok(scan)
        }
    }
}
