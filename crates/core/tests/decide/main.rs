//! `decide`, cell by cell, attack by attack, and over random walks.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod ask;
mod attacks;
mod details;
mod held_back;
mod page;
mod refused;
mod samples;
mod second_reading;
mod table;
mod told;
mod traces;
mod walk;
