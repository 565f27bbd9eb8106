//! The layouts and variants that were measured. Each differs from its base by the fields named here.

use super::{Answer, Changed, Due, Insert, Layout, SettleBy, Unique};

/// Plain: what one writes first. The base line of every ratio.
pub(crate) const P: Layout = Layout {
    name: "P",
    unique: Unique::Clustered,
    settle_by: SettleBy::ScopeKey,
    answer: Answer::Inline,
    due: Due::AllRows,
    changed: Changed::Only,
    insert: Insert::EachRow,
    page_bytes: 4096,
    cache_kib: 64 * 1024,
    mmap_mib: 0,
};

/// As plain, but rows in order of arrival.
const P2: Layout = Layout { name: "P2", unique: Unique::ScopeKey, ..P };

/// Rows in order of arrival, a slim unique index over the id.
const U: Layout = Layout { name: "U", unique: Unique::Id, settle_by: SettleBy::Id, ..P };

/// As U, with eight bytes in the index instead of sixteen.
const U8: Layout = Layout { name: "U8", unique: Unique::Hash64, settle_by: SettleBy::Hash64, ..U };

/// As U, with the answers in a table of their own.
const US: Layout = Layout { name: "US", answer: Answer::Apart, ..U };

/// What the store uses; docs/decisions/0018-stores.md says why.
pub(crate) const CHOSEN: Layout = Layout { name: "US-seq", settle_by: SettleBy::Seq, ..US };

/// The question itself.
pub(crate) const LAYOUTS: &[Layout] = &[P, P2, U, US, CHOSEN, U8];

/// Smaller questions, each asked by changing one thing.
pub(crate) const VARIANTS: &[Layout] = &[
    US,
    U,
    paged("US-1k", 1024, US),
    paged("US-2k", 2048, US),
    paged("US-8k", 8192, US),
    paged("U-1k", 1024, U),
    paged("U-2k", 2048, U),
    paged("U-8k", 8192, U),
    CHOSEN,
    Layout { name: "US-partial", due: Due::Partial, ..US },
    Layout { name: "US-unsettled", due: Due::UnsettledOnly, ..US },
    Layout { name: "US-cache2m", cache_kib: 2 * 1024, ..US },
    Layout { name: "US-cache256m", cache_kib: 256 * 1024, ..US },
    Layout { name: "US-mmap", mmap_mib: 16 * 1024, ..US },
    Layout { name: "US-multi", insert: Insert::SixteenRows, ..US },
    Layout { name: "US-all", changed: Changed::All, ..US },
];

/// The layout or variant of that name.
pub(crate) fn named(name: &str) -> Option<Layout> {
    LAYOUTS.iter().chain(VARIANTS).copied().find(|layout| layout.name == name)
}

const fn paged(name: &'static str, page_bytes: u32, base: Layout) -> Layout {
    Layout { name, page_bytes, ..base }
}
