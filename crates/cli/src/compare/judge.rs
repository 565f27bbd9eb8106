//! Both sides side by side, in order: what belongs together is looked at together, and every difference is told.
//!
//! **Invariant:** of each group, however large it is, only the first few are in memory. Not here: how a difference is shown.

use std::io;

use super::entry::{CHARGE, Charge, Kept, Recorded};
use super::sort::{Entry, Merge};
use crate::progress::Progress;

/// So many charges and records of one difference are shown.
const SHOWN: usize = 5;

/// What can differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    ChargedNotCompleted,
    CompletedNotCharged,
    ChargedTwice,
    AmountDiffers,
    Ambiguous,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::ChargedNotCompleted,
        Self::CompletedNotCharged,
        Self::ChargedTwice,
        Self::AmountDiffers,
        Self::Ambiguous,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ChargedNotCompleted => "charged_not_completed",
            Self::CompletedNotCharged => "completed_not_charged",
            Self::ChargedTwice => "charged_twice",
            Self::AmountDiffers => "amount_differs",
            Self::Ambiguous => "ambiguous",
        }
    }
}

/// One difference.
pub(crate) struct Difference<'a> {
    pub(crate) kind: Kind,
    /// The first of them.
    pub(crate) charges: &'a [Charge],
    pub(crate) charge_count: u64,
    /// The first of them.
    pub(crate) records: &'a [Kept],
    pub(crate) detail: String,
}

/// What was found besides.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// By kind, as in [`Kind::ALL`].
    pub(crate) differences: [u64; 5],
    /// Records with one charge each, of the same amount where amounts are compared.
    pub(crate) agreed: u64,
    /// Charges whose record is a tombstone.
    pub(crate) past_retention: u64,
    /// Charges whose record is of another operation.
    pub(crate) other_operations: u64,
    /// Charges whose amount could not be compared: the answer was too large to keep.
    pub(crate) not_kept: u64,
}

/// Takes differences.
pub(crate) trait Tell {
    fn tell(&mut self, difference: &Difference<'_>) -> io::Result<()>;
}

/// Looks at everything once.
pub(crate) fn judge(mut merge: Merge, entries: u64, tell: &mut dyn Tell) -> io::Result<Tally> {
    let mut progress = Progress::new("entries compared", Some(entries));
    let mut judge = Judge { tally: Tally::default(), tell };
    let (mut entry, mut group, mut done) = (Entry::default(), Group::default(), 0);
    while merge.next(&mut entry)? {
        if group.key != entry.key {
            judge.end(&group)?;
            group.begin(&entry.key);
        }
        let malformed = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        if entry.side == CHARGE {
            judge.charge(&mut group, Charge::decode(&entry.value).map_err(malformed)?)?;
        } else {
            judge.record(&mut group, Kept::decode(&entry.value).map_err(malformed)?)?;
        }
        done += 1;
        progress.tick(done, done);
    }
    judge.end(&group)?;
    Ok(judge.tally)
}

/// What belongs together: charges first, then records.
#[derive(Default)]
struct Group {
    key: Vec<u8>,
    charge_count: u64,
    /// Of these, how many are inside the window.
    charges_inside: u64,
    charges: Vec<Charge>,
    record_count: u64,
    records: Vec<Kept>,
    has_other_operations: bool,
}

impl Group {
    fn begin(&mut self, key: &[u8]) {
        let mut room = std::mem::take(&mut self.key);
        room.clear();
        room.extend_from_slice(key);
        *self = Self { key: room, ..Self::default() };
    }
}

struct Judge<'a> {
    tally: Tally,
    tell: &'a mut dyn Tell,
}

impl Judge<'_> {
    fn charge(&mut self, group: &mut Group, charge: Charge) -> io::Result<()> {
        if group.key.is_empty() {
            // They have nothing in common but that nothing is known.
            return self.keyless(&charge);
        }
        group.charge_count += 1;
        group.charges_inside += u64::from(charge.is_in_window);
        if group.charges.len() < SHOWN {
            group.charges.push(charge);
        }
        Ok(())
    }

    fn keyless(&mut self, charge: &Charge) -> io::Result<()> {
        if !charge.is_in_window {
            return Ok(());
        }
        self.differ(&Difference {
            kind: Kind::ChargedNotCompleted,
            charges: std::slice::from_ref(charge),
            charge_count: 1,
            records: &[],
            detail: "the row has no key".to_owned(),
        })
    }

    fn record(&mut self, group: &mut Group, kept: Kept) -> io::Result<()> {
        if !kept.is_asked_for {
            group.has_other_operations = true;
            return Ok(());
        }
        if group.charge_count == 0 {
            return self.uncharged(&kept);
        }
        group.record_count += 1;
        if group.records.len() < SHOWN {
            group.records.push(kept);
        }
        Ok(())
    }

    fn uncharged(&mut self, kept: &Kept) -> io::Result<()> {
        if !kept.is_success() || !kept.is_in_window {
            return Ok(());
        }
        self.differ(&Difference {
            kind: Kind::CompletedNotCharged,
            charges: &[],
            charge_count: 0,
            records: std::slice::from_ref(kept),
            detail: String::new(),
        })
    }

    /// All of a group was seen.
    fn end(&mut self, group: &Group) -> io::Result<()> {
        if group.charge_count == 0 {
            return Ok(());
        }
        match (group.record_count, group.records.first()) {
            (0, _) if group.has_other_operations => {
                self.tally.other_operations += group.charge_count;
                Ok(())
            }
            (0, _) | (_, None) => self.absent(group),
            (1, Some(kept)) => self.pair(group, kept),
            (several, Some(_)) if group.charges_inside > 0 => self.differ_in(
                Kind::Ambiguous,
                group,
                format!("{several} records have this key, and the export does not say whose it is"),
            ),
            (_, Some(_)) => Ok(()),
        }
    }

    fn absent(&mut self, group: &Group) -> io::Result<()> {
        if group.charges_inside == 0 {
            return Ok(());
        }
        let detail = "there is no record: never made, or past its retention and removed, or of another time";
        self.differ_in(Kind::ChargedNotCompleted, group, detail.to_owned())?;
        self.twice(group)
    }

    /// The charges of one record.
    fn pair(&mut self, group: &Group, kept: &Kept) -> io::Result<()> {
        // Of a charge and its record it is the charge that has a night: who looks by either would tell of a pair across an end on two.
        if group.charges_inside == 0 {
            return Ok(());
        }
        if kept.is_tombstone() {
            self.tally.past_retention += group.charge_count;
        } else if !kept.is_success() {
            self.differ_in(Kind::ChargedNotCompleted, group, meaning(kept))?;
        } else if let (1, [charge]) = (group.charge_count, group.charges.as_slice()) {
            return self.amounts(group, charge, kept);
        }
        self.twice(group)
    }

    fn twice(&mut self, group: &Group) -> io::Result<()> {
        if group.charge_count < 2 {
            return Ok(());
        }
        self.differ_in(Kind::ChargedTwice, group, String::new())
    }

    fn amounts(&mut self, group: &Group, charge: &Charge, kept: &Kept) -> io::Result<()> {
        let Some(charged) = &charge.money else {
            self.tally.agreed += 1;
            return Ok(());
        };
        match &kept.money {
            Recorded::Found(recorded) if recorded == charged => self.tally.agreed += 1,
            Recorded::NotKept => self.tally.not_kept += 1,
            Recorded::Missing(why) => self.differ_in(Kind::AmountDiffers, group, why.clone())?,
            Recorded::Found(_) | Recorded::NotAsked => {
                self.differ_in(Kind::AmountDiffers, group, String::new())?;
            }
        }
        Ok(())
    }

    fn differ_in(&mut self, kind: Kind, group: &Group, detail: String) -> io::Result<()> {
        let Group { charges, charge_count, records, .. } = group;
        self.differ(&Difference { kind, charges, charge_count: *charge_count, records, detail })
    }

    fn differ(&mut self, difference: &Difference<'_>) -> io::Result<()> {
        self.tally.differences[difference.kind as usize] += 1;
        self.tell.tell(difference)
    }
}

/// What it means that a charged record is not completed.
fn meaning(kept: &Kept) -> String {
    match (kept.status, kept.state.as_str()) {
        (Some(status), _) => format!("its client was told {status}"),
        (None, "unknown") if kept.is_parked => {
            "its outcome is unknown, and it waits for an operator".to_owned()
        }
        (None, "unknown") => "its outcome is unknown, and nobody has settled it yet".to_owned(),
        (None, "in_progress") => "it is being executed, or was when this was asked".to_owned(),
        (None, "lapsed") => "its holder is gone, and nobody has settled it yet".to_owned(),
        (None, "failed_retryable") => "it is recorded as without effect: a retry charges again".to_owned(),
        (None, "pending") => "it is accepted, and nobody has run it".to_owned(),
        (None, _) => String::new(),
    }
}
