//! The Lua scripts, and how one is called: by its hash, and by its text where the server does not know the hash.

use std::sync::LazyLock;

use redis::{Cmd, RedisResult, Script, Value};

use crate::link::Connection;

/// The batch. All that ever changes a row.
pub(crate) static APPLY: LazyLock<Named> = LazyLock::new(|| Named::new(include_str!("scripts/apply.lua")));
pub(crate) static DUE: LazyLock<Named> = LazyLock::new(|| Named::new(include_str!("scripts/due.lua")));
pub(crate) static PAGE: LazyLock<Named> =
    LazyLock::new(|| Named::new(concat!(include_str!("scripts/page.lua"), include_str!("scripts/rows.lua"))));
pub(crate) static REFERENCED: LazyLock<Named> = LazyLock::new(|| {
    Named::new(concat!(include_str!("scripts/referenced.lua"), include_str!("scripts/rows.lua")))
});
pub(crate) static LINES: LazyLock<Named> = LazyLock::new(|| Named::new(include_str!("scripts/lines.lua")));
pub(crate) static OF_LINES: LazyLock<Named> =
    LazyLock::new(|| Named::new(include_str!("scripts/of_lines.lua")));
pub(crate) static BACKLOG: LazyLock<Named> =
    LazyLock::new(|| Named::new(include_str!("scripts/backlog.lua")));
pub(crate) static COUNTS: LazyLock<Named> = LazyLock::new(|| Named::new(include_str!("scripts/counts.lua")));

pub(crate) static BEAT: LazyLock<Named> = LazyLock::new(|| Named::new(include_str!("scripts/beat.lua")));
pub(crate) static RELEASE: LazyLock<Named> =
    LazyLock::new(|| Named::new(include_str!("scripts/release.lua")));

pub(crate) static STORY: LazyLock<Named> = LazyLock::new(|| Named::new(include_str!("scripts/story.lua")));
pub(crate) static DROP_ENTRIES: LazyLock<Named> =
    LazyLock::new(|| Named::new(include_str!("scripts/drop_entries.lua")));
pub(crate) static ENTRIES: LazyLock<Named> =
    LazyLock::new(|| Named::new(include_str!("scripts/entries.lua")));
pub(crate) static REMOVED: LazyLock<Named> =
    LazyLock::new(|| Named::new(include_str!("scripts/removed.lua")));
pub(crate) static DROP_REMOVED: LazyLock<Named> =
    LazyLock::new(|| Named::new(include_str!("scripts/drop_removed.lua")));
pub(crate) static KEEP_APART: LazyLock<Named> =
    LazyLock::new(|| Named::new(include_str!("scripts/keep_apart.lua")));
pub(crate) static APART: LazyLock<Named> = LazyLock::new(|| Named::new(include_str!("scripts/apart.lua")));
pub(crate) static DROP_APART: LazyLock<Named> =
    LazyLock::new(|| Named::new(include_str!("scripts/drop_apart.lua")));

/// A script and its hash.
pub(crate) struct Named {
    text: &'static str,
    hash: String,
}

impl Named {
    fn new(text: &'static str) -> Self {
        Self { text, hash: Script::new(text).get_hash().to_owned() }
    }
}

/// A script with its keys and arguments.
pub(crate) struct Call {
    script: &'static Named,
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl Call {
    pub(crate) fn new(script: &'static Named, keys: Vec<String>, arguments: Vec<Vec<u8>>) -> Self {
        Self { script, keys, arguments }
    }

    /// `NOSCRIPT` proves that nothing ran, so the text may follow.
    pub(crate) async fn run(&self, connection: &mut Connection) -> RedisResult<Value> {
        match self.command("EVALSHA", &self.script.hash).query_async(connection).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.command("EVAL", self.script.text).query_async(connection).await
            }
            answered => answered,
        }
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let bytes: usize = self.arguments.iter().map(Vec::len).sum();
        let places = self.keys.len() + self.arguments.len() + 3;
        let mut command = Cmd::with_capacity(places, bytes + places * 16);
        command.arg(verb).arg(script).arg(self.keys.len()).arg(&self.keys);
        for argument in &self.arguments {
            command.arg(argument);
        }
        command
    }
}
