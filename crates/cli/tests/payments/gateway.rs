//! The gateway: `oncegate serve`, a process of its own.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use oncegate_test_servers::FakeClock;

/// What a provider signs its webhooks with.
pub(crate) const PROVIDER_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A running gateway. Dropped, it is killed.
pub(crate) struct Gateway {
    config: PathBuf,
    token: Option<String>,
    clock: Option<FakeClock>,
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Gateway {
    /// In front of `upstream`, with its store in `folder`, on ports that are free; operators must show the token, if there is one. What is
    /// in `more.toml` of that folder is configured too, and the store is the one in `store.url`, if there is such a file.
    pub(crate) fn start(folder: &Path, upstream: SocketAddr, token: Option<&str>) -> Self {
        Self::start_by_clock(folder, upstream, token, None)
    }

    /// The same, by a clock that a test can set.
    pub(crate) fn start_by_clock(
        folder: &Path,
        upstream: SocketAddr,
        token: Option<&str>,
        clock: Option<FakeClock>,
    ) -> Self {
        let token = token.map(str::to_owned);
        let config = folder.join("gateway.toml");
        let store = store_of(folder);
        let anywhere: SocketAddr = ([127, 0, 0, 1], 0).into();
        write(&config, anywhere, anywhere, upstream, &store);
        let (child, address, admin) = run(&config, token.as_deref(), clock.as_ref());
        // From now on it is found where it is.
        write(&config, address, admin, upstream, &store);
        Self { config, token, clock, child, address, admin }
    }

    /// `kill -9`: nothing is said, settled or answered.
    pub(crate) fn is_killed(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// On the same ports and store.
    pub(crate) fn starts_again(&mut self) {
        let (child, address, admin) = run(&self.config, self.token.as_deref(), self.clock.as_ref());
        assert_eq!((address, admin), (self.address, self.admin));
        self.child = child;
    }
}

/// Where the records of a gateway in this folder are.
pub(crate) fn store_of(folder: &Path) -> String {
    let in_folder = || format!("sqlite://{}", folder.join("oncegate.db").display());
    fs::read_to_string(folder.join("store.url")).unwrap_or_else(|_| in_folder())
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

fn write(config: &Path, listen: SocketAddr, admin: SocketAddr, upstream: SocketAddr, store: &str) {
    let more = fs::read_to_string(config.with_file_name("more.toml")).unwrap_or_default();
    // A lease is short, so that a story of a crash is; but longer than a busy machine stands still, for then nothing is granted. It is
    // renewed while a payment runs. Stories without a crash have longer ones.
    let lease = if more.contains("\nlease = ") { "" } else { "lease = \"5s\"\n" };
    let text = format!(
        "[listen]\naddress = \"{listen}\"\n[admin]\naddress = \"{admin}\"\n[upstream]\nurl = \"http://{upstream}\"\n\
         [store]\nurl = \"{store}\"\n[defaults]\nprofile = \"payments\"\nattempt_deadline = \"2m\"\n{lease}"
    );
    fs::write(config, text + &more).unwrap();
}

fn run(config: &Path, token: Option<&str>, clock: Option<&FakeClock>) -> (Child, SocketAddr, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.env_clear();
    if let Some(clock) = clock {
        clock.give_to(&mut command);
    }
    let mut child = command
        .env("PROVIDER_SECRET", PROVIDER_SECRET)
        .envs(token.map(|token| ("ONCEGATE_ADMIN_TOKEN", token)))
        .args(["serve", "--log", "error", "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let Some((address, admin)) = addresses(&mut said) else {
        let _gone = child.kill();
        let _status = child.wait();
        panic!("the gateway did not start");
    };
    // Whatever else it says is shown if the test fails.
    std::thread::spawn(move || {
        said.lines().map_while(Result::ok).for_each(|line| eprintln!("gateway: {line}"));
    });
    (child, address, admin)
}

/// `oncegate listens on http://A in front of http://B, and for operators on http://C`
fn addresses(said: &mut BufReader<ChildStderr>) -> Option<(SocketAddr, SocketAddr)> {
    for line in said.lines().map_while(Result::ok) {
        let Some(rest) = line.strip_prefix("oncegate listens on http://") else {
            eprintln!("gateway: {line}");
            continue;
        };
        let (address, _) = rest.split_once(' ')?;
        let (_, admin) = rest.rsplit_once("http://")?;
        return Some((address.parse().ok()?, admin.parse().ok()?));
    }
    None
}
