//! Scans, pages and counts. Each is a script, so that it sees one moment; a large one is several calls.
//!
//! Sorted sets order by doubles, which hold microseconds exactly until the year 2255. Rounding keeps the order, so no row is missed
//! beyond that; each row found is asked itself whether its moment has come.

use std::collections::HashSet;
use std::sync::Arc;

use oncegate_core::identity::RecordId;
use oncegate_core::key::Key;
use oncegate_core::record::Record;
use oncegate_core::scope::{Address, Operation, Scope};
use oncegate_store::{
    Counts, Cursor, Due, Effect, Filter, Kind, Moments, Page, Result, SCAN_BYTES_MAX, Scan, StoreError,
};
use redis::Value;

use crate::error::Nature;
use crate::history::Checks;
use crate::keys::Keys;
use crate::link::Link;
use crate::row::{self, Class};
use crate::script::{COUNTS, Call, DUE, PAGE, REFERENCED};

/// At most so many rows a call: a script keeps everybody waiting.
pub(crate) const ROWS_MAX: usize = 256;
/// A call stops once its rows are this large.
pub(crate) const BYTES_MAX: usize = 4 << 20;

/// Rows of excepted operations are read and skipped here, so a scan ends after so many; the next one
/// goes on behind them.
const SKIPPED_MAX: usize = 16_384;

pub(crate) async fn due(
    link: &Arc<Link<Checks>>,
    keys: &Keys,
    what: Due,
    except: &[Operation],
    moments: Moments,
    limit: usize,
) -> Result<Scan> {
    let mut scan = Scan::default();
    let (mut offset, mut bytes) = (0, 0);
    // Rows may come and go between two calls, and a row be met twice.
    let mut met = HashSet::new();
    let mut reached = None;
    // Rows that cannot be read are passed over: they must not stand in the way of others.
    loop {
        let is_far = !except.is_empty() && offset >= SKIPPED_MAX;
        scan.is_cut = scan.records.len() >= limit || bytes >= SCAN_BYTES_MAX || is_far;
        if scan.is_cut {
            // What was found beyond the limit was not looked at.
            scan.skipped_until = reached.filter(|_| is_far && scan.records.len() < limit);
            break;
        }
        let wanted = if except.is_empty() { limit - scan.records.len() } else { ROWS_MAX };
        let count = ROWS_MAX.min(wanted);
        let arguments = [moments.by.as_micros().to_string(), offset.to_string(), count.to_string()];
        let from = moments.from.as_micros().to_string();
        let arguments = arguments.into_iter().chain([BYTES_MAX.to_string(), keys.rows(), from]);
        let call = Call::new(&DUE, vec![keys.due(what)], arguments.map(String::into_bytes).collect());
        let found = array("due", run(link, "due", call).await?)?;
        if found.is_empty() {
            break;
        }
        offset += found.len() / 2;
        for found in found.chunks_exact(2) {
            let found_row = decode(&found[0], &found[1]);
            reached = found_row.as_ref().ok().and_then(|record| what.moment(record)).or(reached);
            match found_row {
                Ok(record) if !what.moment(&record).is_some_and(|moment| moments.contain(moment)) => {}
                Ok(record) if except.contains(&record.operation) => {}
                Ok(_) if scan.records.len() >= limit => scan.is_cut = true,
                Ok(record) if met.insert(record.id) => {
                    bytes += size(&found[1]);
                    scan.records.push(record);
                }
                Ok(_) => {}
                Err(_) => scan.unreadable += 1,
            }
        }
    }
    scan.records.sort_by_key(|record| what.moment(record));
    Ok(scan)
}

/// A page of rows, newest first. The cursor is the last row's place in the order of arrival.
///
/// State and parked have an order of their own, scope and key together are the id, a reference has a list of its ids; what else is
/// asked for is looked for row by row.
pub(crate) async fn browse(
    link: &Arc<Link<Checks>>,
    keys: &Keys,
    filter: &Filter,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Page> {
    let mut before = after.map(place).transpose()?;
    if let (None, Some(id)) = (before, named(filter)) {
        return one(link, keys, filter, id, limit).await;
    }
    let classes: Vec<_> = Class::ALL.into_iter().filter(|class| is_asked_for(*class, filter)).collect();
    let mut page = Page { records: Vec::new(), unreadable: 0, next: None };
    if classes.is_empty() {
        return Ok(page);
    }
    let mut last = None;
    loop {
        let names = classes.iter().map(|class| keys.class(*class)).collect();
        let reference = filter.reference.as_deref();
        let count = ROWS_MAX.min(limit.saturating_add(1));
        let found = part(link, names, reference, before, count, keys).await?;
        let Some((seq, _)) = found.last() else { return Ok(page) };
        before = Some(*seq);
        for (seq, record) in found {
            if record.as_ref().is_ok_and(|record| !matches(filter, record)) {
                continue;
            }
            // One row more than asked for says that there is a next page.
            if page.records.len() + page.unreadable == limit {
                page.next = last.map(|seq: i64| Cursor::new(seq.to_string()));
                return Ok(page);
            }
            match record {
                Ok(record) => page.records.push(record),
                Err(_) => page.unreadable += 1,
            }
            last = Some(seq);
        }
    }
}

pub(crate) async fn counts(link: &Arc<Link<Checks>>, keys: &Keys) -> Result<Counts> {
    let names = Class::ALL.iter().map(|class| keys.class(*class)).collect();
    let reply = run(link, "counts", Call::new(&COUNTS, names, Vec::new())).await?;
    let mut counts = Counts::default();
    for (class, count) in Class::ALL.into_iter().zip(array("counts", reply)?) {
        let Value::Int(count) = count else { return Err(odd("counts")) };
        let count = u64::try_from(count).unwrap_or(0);
        *counts.of_state(class.state()) += count;
        if class.is_parked() {
            counts.parked = count;
        }
    }
    Ok(counts)
}

fn place(cursor: &Cursor) -> Result<i64> {
    cursor.as_str().parse().map_err(|error| {
        let why = format!("not a cursor of this store: {error}");
        StoreError::new(Kind::Other, Effect::None, "browse").because(why)
    })
}

/// Scope and key are the id.
fn named(filter: &Filter) -> Option<RecordId> {
    let scope = Scope::from_stored(filter.scope.as_ref()?).ok()?;
    let key = Key::from_text(filter.key.as_ref()?).ok()?;
    Some(RecordId::of(&Address { scope, key }))
}

async fn one(
    link: &Arc<Link<Checks>>,
    keys: &Keys,
    filter: &Filter,
    id: RecordId,
    limit: usize,
) -> Result<Page> {
    let mut page = Page { records: Vec::new(), unreadable: 0, next: None };
    let name = keys.row(id);
    let found = link.call("browse", Nature::Reads, async move |mut connection| {
        redis::cmd("GET").arg(name).query_async::<Option<Vec<u8>>>(&mut connection).await
    });
    match found.await?.map(|found| row::decode(&found, id)) {
        _ if limit == 0 => {}
        Some(Ok(record)) if matches(filter, &record) => page.records.push(record),
        Some(Err(_)) => page.unreadable = 1,
        Some(Ok(_)) | None => {}
    }
    Ok(page)
}

fn is_asked_for(class: Class, filter: &Filter) -> bool {
    filter.state.is_none_or(|state| class.state() == state)
        && filter.parked.is_none_or(|parked| class.is_parked() == parked)
}

/// All but state and parked, which the class has settled.
fn matches(filter: &Filter, record: &Record) -> bool {
    let Filter { state, parked, scope, key, operation, reference, created_from, created_before } = filter;
    state.is_none_or(|state| record.state.kind() == state)
        && parked.is_none_or(|parked| Class::of(record).is_parked() == parked)
        && scope.as_ref().is_none_or(|scope| record.address.scope.as_str() == scope)
        && key.as_ref().is_none_or(|key| record.address.key.as_str() == key)
        && operation.as_ref().is_none_or(|operation| record.operation.as_str() == operation)
        && reference
            .as_deref()
            .is_none_or(|reference| record.provider_reference.as_deref() == Some(reference))
        && created_from.is_none_or(|from| record.created_at >= from)
        && created_before.is_none_or(|before| record.created_at < before)
}

async fn part(
    link: &Arc<Link<Checks>>,
    mut names: Vec<String>,
    reference: Option<&str>,
    before: Option<i64>,
    count: usize,
    keys: &Keys,
) -> Result<Vec<(i64, std::result::Result<Record, String>)>> {
    let before = before.map_or_else(|| "+inf".to_owned(), |seq| format!("({seq}"));
    let arguments = [before, count.to_string(), BYTES_MAX.to_string(), keys.rows()];
    let mut arguments: Vec<_> = arguments.map(String::into_bytes).into();
    let mut script = &PAGE;
    if let Some(reference) = reference {
        let [ids, _] = keys.references();
        names.insert(0, ids);
        arguments.push(row::reference(reference));
        script = &REFERENCED;
    }
    let call = Call::new(script, names, arguments);
    let reply = array("browse", run(link, "browse", call).await?)?;
    let row = |found: &[Value]| match &found[0] {
        Value::Int(seq) => Ok((*seq, decode(&found[1], &found[2]))),
        _ => Err(odd("browse")),
    };
    reply.chunks_exact(3).map(row).collect()
}

/// A row as a script found it, under its id.
fn decode(id: &Value, row: &Value) -> std::result::Result<Record, String> {
    let (Value::BulkString(id), Value::BulkString(row)) = (id, row) else {
        return Err("neither id nor row".to_owned());
    };
    let id = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok());
    row::decode(row, id.ok_or_else(|| "what is listed is not an id".to_owned())?)
}

const fn size(row: &Value) -> usize {
    match row {
        Value::BulkString(row) => row.len(),
        _ => 0,
    }
}

pub(crate) async fn run(link: &Arc<Link<Checks>>, operation: &'static str, call: Call) -> Result<Value> {
    link.call(operation, Nature::Reads, async move |mut connection| call.run(&mut connection).await).await
}

pub(crate) fn array(operation: &'static str, reply: Value) -> Result<Vec<Value>> {
    match reply {
        Value::Array(values) => Ok(values),
        _ => Err(odd(operation)),
    }
}

pub(crate) fn odd(operation: &'static str) -> StoreError {
    StoreError::new(Kind::Other, Effect::None, operation).because("the script's reply is not one of ours")
}
