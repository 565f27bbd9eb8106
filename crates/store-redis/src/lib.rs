#![doc = include_str!("../README.md")]

mod address;
mod apply;
mod ask;
mod cache;
mod error;
mod history;
mod io;
mod keys;
mod link;
mod removed;
mod row;
mod script;
mod settings;
mod signals;
mod store;
mod tls;
mod trail;
mod waiting;
mod warning;

pub use address::is_exposed;
pub use cache::{RedisCache, RedisCacheOptions};
pub use store::{RedisOptions, RedisStore};
pub use warning::Warning;
