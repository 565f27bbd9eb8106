#![doc = include_str!("../README.md")]

pub mod sqlite;

pub use sqlite::SqliteStore;
