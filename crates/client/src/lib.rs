#![doc = include_str!("../README.md")]

mod answer;
mod backoff;
mod client;
mod course;
mod judge;
mod keep;
mod key;
mod operation;
mod outcome;
mod pace;
mod send;

pub use answer::Answer;
pub use backoff::Limits;
pub use client::{BuildError, Builder, Client, KeyForm};
pub use keep::{AnyKeep, FileKeep, FileKeepError, Keep, Nowhere};
pub use key::{Key, NotAKey};
pub use operation::{NotBegun, Operation, Unsendable};
pub use outcome::{Asked, DidNotHappen, Happened, Last, MayHaveHappened, Outcome, Why};
pub use pace::{Pace, Waiting};
pub use send::NoAnswer;

/// The library that sends, for [`Builder::http`].
pub use reqwest;
