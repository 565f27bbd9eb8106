//! Takes each rule back, one at a time, and checks that the tests notice.
//!
//! A mutant is a line of a rule replaced by what an earlier draft did. It is applied in a copy of the workspace, so that
//! an interrupted run leaves nothing behind. A mutant that no longer fits the source is an error: the rule moved, and the
//! mutant must follow it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Result, root};

mod admin;
mod after;
mod client;
mod clock;
mod credentials;
mod identity;
mod list;
mod overload;
mod path;
mod restore;
mod stores;
mod targets;
mod terms;
mod workers;

use list::Mutant;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only mutants whose name contains this, or of this package
    filter: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let copy = Copy::make()?;
    let wanted = |mutant: &&Mutant| {
        let is_asked_for = |text: &String| mutant.name.contains(text) || mutant.package == text;
        args.filter.as_ref().is_none_or(is_asked_for)
    };
    let chosen: Vec<_> = all().filter(wanted).collect();
    let packages: std::collections::BTreeSet<_> =
        chosen.iter().map(|mutant| (mutant.package, mutant.test)).collect();
    for (package, test) in packages {
        if copy.tests_fail(None, package, test)? {
            return Err(format!("the tests of {package} fail without any mutant; mend that first"));
        }
    }
    let mut survivors = Vec::new();
    for (n, mutant) in chosen.iter().enumerate() {
        let undo = copy.apply(mutant)?;
        let caught = copy.tests_fail(Some(mutant), mutant.package, mutant.test)?;
        std::fs::write(copy.0.join(mutant.file), undo).map_err(|error| error.to_string())?;
        println!(
            "[{}/{}] {} {}",
            n + 1,
            chosen.len(),
            if caught { "caught  " } else { "SURVIVED" },
            mutant.name
        );
        if !caught {
            survivors.push(mutant.name);
        }
    }
    println!("{} passed, {} failed", chosen.len() - survivors.len(), survivors.len());
    if survivors.is_empty() { Ok(()) } else { Err(format!("no test notices: {}", survivors.join(", "))) }
}

fn all() -> impl Iterator<Item = &'static Mutant> {
    [
        admin::MUTANTS,
        after::MUTANTS,
        client::MUTANTS,
        clock::MUTANTS,
        credentials::MUTANTS,
        identity::MUTANTS,
        list::MUTANTS,
        overload::MUTANTS,
        path::MUTANTS,
        restore::MUTANTS,
        stores::MUTANTS,
        targets::MUTANTS,
        terms::MUTANTS,
        workers::MUTANTS,
    ]
    .into_iter()
    .flatten()
}

/// A mutant that makes a test wait for ever is caught too.
const TIMEOUT_S: &str = "300";

/// A copy of the workspace's sources, with a build directory of its own under `target`.
struct Copy(PathBuf);

impl Copy {
    fn make() -> Result<Self> {
        let at = root().join("target/mutants/source");
        // Kept between runs for its build, but always with today's sources.
        if at.exists() {
            std::fs::remove_dir_all(&at).map_err(|error| error.to_string())?;
        }
        let files = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(root())
            .output()
            .map_err(|error| format!("git lists the sources: {error}"))?;
        for file in String::from_utf8_lossy(&files.stdout).lines() {
            let (from, to) = (root().join(file), at.join(file));
            if !from.exists() {
                continue;
            }
            let folder = to.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder)
                .and_then(|()| std::fs::copy(&from, &to))
                .map_err(|error| format!("{file}: {error}"))?;
        }
        Ok(Self(at))
    }

    /// Writes the mutant and returns the text that was there.
    fn apply(&self, mutant: &Mutant) -> Result<String> {
        let path = self.0.join(mutant.file);
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", mutant.file))?;
        if !fits(mutant, &text) {
            return Err(format!("{}: its rule is not (or not once) in {}", mutant.name, mutant.file));
        }
        std::fs::write(&path, text.replacen(mutant.rule, mutant.without, 1))
            .map_err(|error| error.to_string())?;
        Ok(text)
    }

    /// Whether the tests notice: one fails, or never ends. A mutant that does not compile was noticed by nobody, so that is an error.
    fn tests_fail(&self, mutant: Option<&Mutant>, package: &str, test: &str) -> Result<bool> {
        // Unit tests have no target of their own.
        let target: &[&str] = match test {
            "lib" => &["--package", package, "--lib"],
            test => &["--package", package, "--test", test],
        };
        if !self.cargo("0", &["test", "--no-run", "--quiet"], target)? {
            return Err(mutant.map_or_else(
                || format!("the tests of {package} do not compile; mend that first"),
                |mutant| format!("{}: the mutant does not compile", mutant.name),
            ));
        }
        // The first failure is enough, and nextest stops there; a test that waits in vain takes its time.
        let nextest = crate::cargo().args(["nextest", "--version"]).output();
        let run: &[&str] = if nextest.is_ok_and(|out| out.status.success()) {
            &["nextest", "run", "--cargo-quiet", "--fail-fast"]
        } else {
            &["test", "--quiet"]
        };
        Ok(!self.cargo(TIMEOUT_S, run, target)?)
    }

    fn cargo(&self, timeout_s: &str, command: &[&str], target: &[&str]) -> Result<bool> {
        // `timeout` ends the test binary too, which is a grandchild.
        let status = Command::new("timeout")
            .arg(timeout_s)
            .arg(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(command)
            .args(target)
            .current_dir(&self.0)
            .env("CARGO_TARGET_DIR", root().join("target/mutants/build"))
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(|error| format!("cargo: {error}"))?;
        Ok(status.success())
    }
}

fn fits(mutant: &Mutant, text: &str) -> bool {
    text.matches(mutant.rule).count() == 1
}

#[cfg(test)]
mod tests {
    use super::{all, fits};
    use crate::root;

    /// A rule that moved would otherwise be missed only by whoever next runs all of them, which takes hours.
    #[test]
    fn each_mutant_is_of_a_rule_that_is_there() {
        let is_lost = |mutant: &&super::Mutant| {
            let text = std::fs::read_to_string(root().join(mutant.file)).unwrap_or_default();
            !fits(mutant, &text)
        };
        let lost: Vec<_> = all().filter(is_lost).map(|mutant| (mutant.name, mutant.file)).collect();
        assert_eq!(lost, []);
    }
}
