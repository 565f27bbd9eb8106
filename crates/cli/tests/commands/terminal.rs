//! Somebody at a terminal, who is asked and answers.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::{Command, Output};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Runs it with a terminal for its stdin, into which this has been typed.
pub(crate) fn typing(command: &mut Command, text: &str) -> Output {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs: OwnedFd = OpenOptions::new().read(true).write(true).open(name).unwrap().into();
    let mut keyboard = File::from(ours);
    keyboard.write_all(text.as_bytes()).unwrap();
    command.stdin(theirs).output().unwrap()
}
