#![doc = include_str!("../README.md")]

pub mod api;
mod file;
pub mod post;
pub mod provider;
mod serve;

pub use serve::Serving;
