//! PgBouncer in transaction mode, in front of a PostgreSQL: what a statement of one connection prepared, the next one lacks.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::place::{self, Owner, Port, authority, is_about_the_port};
use crate::process::Process;
use crate::programs;

/// A PgBouncer. Dropped, it is killed.
pub struct PgBouncer {
    // Before its directory, so that it ends first.
    process: Option<Process>,
    directory: TempDir,
    owner: Option<Owner>,
    port: Port,
    user: String,
}

impl PgBouncer {
    /// One in front of the PostgreSQL at this URL, whose user needs no password, with these settings of its `[pgbouncer]`
    /// section. Pools are by transaction unless they say otherwise.
    #[must_use]
    pub fn start(postgres_url: &str, settings: &[(&str, &str)]) -> Self {
        let owner = Owner::of_postgres();
        let directory = place::directory("pgbouncer-", owner);
        let user = user(postgres_url).to_owned();
        let mut bouncer = Self { process: None, directory, owner, port: Port::free(), user };
        for _ in 0..20 {
            bouncer.configure(postgres_url, settings);
            match bouncer.try_start() {
                Ok(()) => return bouncer,
                Err(said) if is_about_the_port(&said) => bouncer.port = Port::free(),
                Err(said) => panic!("PgBouncer does not start; it says:\n{said}"),
            }
        }
        panic!("PgBouncer does not start: each of twenty ports was taken");
    }

    /// Where clients connect to.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{}@127.0.0.1:{}/postgres", self.user, self.port())
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    fn configure(&self, postgres_url: &str, settings: &[(&str, &str)]) {
        let (host, port) =
            authority(postgres_url).rsplit_once(':').unwrap_or((authority(postgres_url), "5432"));
        let own = self.directory.path().display();
        let (listen, user) = (self.port(), &self.user);
        // No socket file: a PgBouncer without its port must not seem to run.
        let settings: String =
            settings.iter().map(|(name, value)| [name, " = ", value, "\n"].concat()).collect();
        let text = format!(
            "[databases]\n* = host={host} port={port} user={user}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {listen}\nunix_socket_dir =\nauth_type = trust\nauth_file = {own}/users.txt\n\
             admin_users = {user}\npool_mode = transaction\n{settings}"
        );
        let write = |name: &str, text: &str| {
            let path = self.directory.path().join(name);
            fs::write(&path, text).expect("PgBouncer's settings can be written");
            if let Some(owner) = self.owner {
                owner.give(&path);
            }
        };
        write("pgbouncer.ini", &text);
        write("users.txt", &format!("\"{user}\" \"\"\n"));
    }

    fn try_start(&mut self) -> Result<(), String> {
        let program = programs::must(programs::find("pgbouncer"), "pgbouncer");
        let directory = self.directory.path();
        let configuration = directory.join("pgbouncer.ini");
        let mut command = place::command(&program, directory, self.owner);
        let mut process = Process::start("pgbouncer", directory, command.arg(&configuration));
        let configuration = configuration.display().to_string();
        // Asked who it is: behind the port there might be somebody else.
        process.wait_until_up(|| {
            let told = self.console("show config").output().expect("psql runs");
            String::from_utf8_lossy(&told.stdout).contains(&configuration)
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// `psql` on PgBouncer's own console.
    fn console(&self, text: &str) -> Command {
        let program = programs::must(programs::postgres("psql"), "postgresql");
        let mut command = place::command(&program, self.directory.path(), self.owner);
        command.args([
            "-h",
            "127.0.0.1",
            "-p",
            &self.port().to_string(),
            "-U",
            &self.user,
            "-d",
            "pgbouncer",
        ]);
        command.args(["-XAtq", "-c", text]);
        command
    }
}

/// The user of a URL, without the password.
fn user(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let user = rest.rsplit_once('@').expect("the URL names a user").0;
    user.split_once(':').map_or(user, |(user, _)| user)
}
