#![doc = include_str!("../README.md")]
//!
//! Read [`decide`] first: it is the whole truth. [`record`] is what it reads and writes, [`policy`] what a route may
//! choose, [`classify`] how the end of an attempt is judged, [`problem`] what the boundary says in its own voice.

pub mod audit;
pub mod classify;
pub mod codec;
pub mod decide;
pub mod duration;
pub mod fingerprint;
pub mod identity;
pub mod key;
pub mod policy;
pub mod problem;
pub mod record;
pub mod response;
pub mod scope;
pub mod time;
