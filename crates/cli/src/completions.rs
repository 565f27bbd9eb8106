//! `oncegate completions`: for the shell.

use std::process::ExitCode;

use clap::CommandFactory as _;

/// Print completions for a shell, such as `source <(oncegate completions bash)`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which shell
    shell: clap_complete::Shell,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Arguments::command(), "oncegate", &mut script);
    crate::streams::print(&script)
}
