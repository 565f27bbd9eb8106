//! The programs that tests start: installed if we may, asked for if we may not.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;

use oncegate_test_servers::{programs, shared};

use crate::servers::is_unset;
use crate::{Result, must};

/// Makes sure that they are there.
pub(crate) fn provide() -> Result<()> {
    let missing = programs::missing_packages();
    if missing.is_empty() {
        return Ok(());
    }
    if rustix::process::getuid().is_root() && programs::find("apt-get").is_some() {
        install(&missing)?;
        let missing = programs::missing_packages();
        return if missing.is_empty() { Ok(()) } else { Err(words(&missing)) };
    }
    if is_unset(shared::POSTGRES_URL) || is_unset(shared::REDIS_URL) {
        return Err(words(&missing));
    }
    eprintln!("missing: {}; tests that start servers of their own will fail", missing.join(", "));
    Ok(())
}

fn words(missing: &[&str]) -> String {
    let packages = missing.join(" ");
    format!(
        "the tests start servers whose programs are not on this machine. Either install them:\n\
         \n    sudo apt-get update && sudo apt-get install -y --no-install-recommends {packages}\n\n\
         or set {} and {} to the URLs of servers that may be written to; tests that kill a server still need the programs",
        shared::POSTGRES_URL,
        shared::REDIS_URL
    )
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
