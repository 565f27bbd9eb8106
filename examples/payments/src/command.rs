//! Both programs, to be run by a process of their own, or by one that plays several parts.

pub mod api;
pub mod provider;
