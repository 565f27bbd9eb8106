//! The programs that tests and measurements start: installed if we may, asked for if we may not.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;

use oncegate_test_servers::{programs, shared};

use crate::servers::is_unset;
use crate::{Result, must};

/// Makes sure that those of the tests are there, or that there are servers to use instead.
pub(crate) fn provide_for_tests() -> Result<()> {
    let missing = missing_after_installing(|_| true)?;
    if missing.is_empty() {
        return Ok(());
    }
    if is_unset(shared::POSTGRES_URL) || is_unset(shared::REDIS_URL) {
        return Err(format!(
            "the tests start servers whose programs are not on this machine. Either install them:\n\n    {}\n\n\
             or set {} and {} to the URLs of servers that may be written to; tests that kill a server still need the programs",
            how_to_install(&missing),
            shared::POSTGRES_URL,
            shared::REDIS_URL
        ));
    }
    eprintln!("missing: {}; tests that start servers of their own will fail", missing.join(", "));
    Ok(())
}

/// Makes sure that those of the measurements are there. Nothing stands in for them: what is measured is a server of one's own.
pub(crate) fn provide_for_measurements() -> Result<()> {
    let missing =
        missing_after_installing(|package| matches!(package, "postgresql" | "redis-server" | "redis-tools"))?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "this measurement starts servers whose programs are not on this machine. Install them:\n\n    {}",
        how_to_install(&missing)
    ))
}

/// The packages among those wanted that are missing, also after we have installed what we may.
fn missing_after_installing(is_wanted: impl Fn(&str) -> bool) -> Result<Vec<&'static str>> {
    let missing = || -> Vec<_> {
        programs::missing_packages().into_iter().filter(|package| is_wanted(package)).collect()
    };
    let first = missing();
    if first.is_empty() || !rustix::process::getuid().is_root() || programs::find("apt-get").is_none() {
        return Ok(first);
    }
    install(&first)?;
    match missing() {
        still if still.is_empty() => Ok(still),
        still => Err(format!("installed, and yet without programs: {}", still.join(", "))),
    }
}

fn how_to_install(missing: &[&str]) -> String {
    let packages = missing.join(" ");
    format!("sudo apt-get update && sudo apt-get install -y --no-install-recommends {packages}")
}

fn install(packages: &[&str]) -> Result<()> {
    // Only the programs are wanted: no service of Debian's is started, and no cluster is made for it.
    let _no_services = Temporary::write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n")?;
    let no_cluster = "/etc/postgresql-common/createcluster.d/oncegate.conf";
    let _no_cluster = Temporary::write(no_cluster, "create_main_cluster = false\n")?;
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").stdout(std::io::stderr());
        command
    };
    must(apt().args(["update", "-q"]))?;
    must(apt().args(["install", "-q", "-y", "--no-install-recommends"]).args(packages))
}

/// A file that is there while we install. One that was there before stays as it is.
struct Temporary(Option<PathBuf>);

impl Temporary {
    fn write(path: &str, text: &str) -> Result<Self> {
        let path = PathBuf::from(path);
        if path.exists() {
            return Ok(Self(None));
        }
        let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
        let made =
            folder.and_then(|()| fs::File::options().write(true).create_new(true).mode(0o755).open(&path));
        made.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(Some(path)))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _gone = fs::remove_file(path);
        }
    }
}
