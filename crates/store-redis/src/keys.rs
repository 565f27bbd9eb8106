//! The names of our keys in Redis.
//!
//! All begin with `{prefix}:`. The braces are a hash tag: on a cluster all keys are in one slot, so one node has them all, and
//! a script may touch any of them. More throughput than one node gives is not to be had from this store.

use oncegate_core::identity::RecordId;
use oncegate_store::Due;

use crate::row::Class;

/// Under one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: format!("{{{prefix}}}:") }
    }

    /// The counter that gives rows their order of arrival.
    pub(crate) fn arrival(&self) -> String {
        self.name("arrival")
    }

    /// The counter of the release before. A node of that release writes nothing once it is not a number.
    pub(crate) fn former_arrival(&self) -> String {
        self.name("seq")
    }

    /// What row keys begin with.
    pub(crate) fn rows(&self) -> String {
        self.name("row:")
    }

    pub(crate) fn row(&self, id: RecordId) -> String {
        format!("{}row:{id}", self.prefix)
    }

    /// The ids of one class, by order of arrival.
    pub(crate) fn class(&self, class: Class) -> String {
        format!("{}order:{}", self.prefix, class.name())
    }

    /// The ids that are due in one sense, by moment.
    pub(crate) fn due(&self, what: Due) -> String {
        let name = match what {
            Due::Pending => "pending",
            Due::Lapsed => "lapsed",
            Due::Resumable => "resumable",
            Due::Doubted => "doubted",
            Due::Expired => "expired",
        };
        format!("{}due:{name}", self.prefix)
    }

    /// The audit trail: entries by name, their names by record and order of arrival, and by age.
    pub(crate) fn trail(&self) -> [String; 3] {
        ["trail:entries", "trail:stories", "trail:ages"].map(|name| self.name(name))
    }

    /// The days on which rows were removed. The ids of a day are in sets whose names begin with
    /// this.
    pub(crate) fn removed(&self) -> String {
        self.name("removed")
    }

    /// The providers' references: each with the ids of its records, and by id.
    pub(crate) fn references(&self) -> [String; 2] {
        ["references:ids", "references:of"].map(|name| self.name(name))
    }

    /// What waits: each row after its line and its moment, and that name by id.
    pub(crate) fn waiting(&self) -> [String; 2] {
        ["waiting:lines", "waiting:of"].map(|name| self.name(name))
    }

    /// Ids of what is unknown, by when it began: all of them, and the parked ones.
    pub(crate) fn doubts(&self) -> [String; 2] {
        ["doubts:open", "doubts:parked"].map(|name| self.name(name))
    }

    /// What is kept apart: names by age, and messages by name.
    pub(crate) fn apart(&self) -> [String; 2] {
        ["apart:order", "apart:messages"].map(|name| self.name(name))
    }

    /// Watermarks by node, and nodes by when they were last rewritten.
    pub(crate) fn watermarks(&self) -> [String; 2] {
        ["watermarks:marks", "watermarks:ages"].map(|name| self.name(name))
    }

    /// Quarantines by id, and when they were released.
    pub(crate) fn quarantines(&self) -> [String; 2] {
        ["quarantines:windows", "quarantines:releases"].map(|name| self.name(name))
    }

    /// The channel between nodes.
    pub(crate) fn signals(&self) -> String {
        self.name("signals")
    }

    /// A cached record, which is no row.
    pub(crate) fn cached(&self, id: RecordId) -> String {
        format!("{}cache:{id}", self.prefix)
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}
