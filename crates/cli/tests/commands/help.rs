//! `--help`, and what is said to whoever types no command, or none that there is.

use insta::assert_snapshot;

use crate::desk::{Desk, seen};

pub(crate) const COMMANDS: [&str; 26] = [
    "audit",
    "audit export",
    "audit list",
    "check",
    "compare",
    "completions",
    "dead",
    "dead list",
    "dead retry",
    "dead show",
    "dead withdraw",
    "dev",
    "fingerprint",
    "forget",
    "keys",
    "keys list",
    "keys show",
    "migrate",
    "quarantine",
    "quarantine list",
    "quarantine release",
    "resolve",
    "serve",
    "stats",
    "store",
    "store check",
];

#[test]
fn of_every_command() {
    let desk = Desk::empty();
    assert_snapshot!("oncegate", desk.run("--help"));
    for command in COMMANDS {
        assert_snapshot!(command.replace(' ', "_"), desk.run(&format!("{command} --help")));
    }
}

#[test]
fn no_command_is_missing_here() {
    let all = Desk::empty().run("--help");
    let listed =
        all.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let listed: Vec<_> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    let ours: Vec<_> =
        COMMANDS.into_iter().filter(|command| !command.contains(' ')).chain(["help"]).collect();
    assert_eq!(listed, ours);
}

#[test]
fn no_command_and_none_that_there_is() {
    let desk = Desk::empty();
    assert_snapshot!("nothing", desk.run(""));
    assert_snapshot!("unknown", desk.run("bogus"));
    assert_snapshot!("almost", desk.run("stat"));
    assert_snapshot!("keys_nothing", desk.run("keys"));
    assert_snapshot!("keys_unknown", desk.run("keys delete"));
}

/// Help shows which variables there are, and never what is in them.
#[test]
fn no_secret_of_the_environment_is_shown() {
    let desk = Desk::empty();
    for command in COMMANDS {
        let mut command = desk.command(&format!("{command} --help"));
        for name in ["STORE", "ADMIN", "UPSTREAM", "ADMIN_TOKEN", "LISTEN", "CONFIG"] {
            command.env(format!("ONCEGATE_{name}"), "postgres://u:hunter2@h/");
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        if text.contains("hunter2") {
            // These hold addresses and paths; the others may hold passwords.
            let shown: Vec<_> = text.lines().filter(|line| line.contains("hunter2")).collect();
            let is_harmless =
                |line: &&str| ["LISTEN", "ADMIN=", "CONFIG"].iter().any(|name| line.contains(name));
            assert!(shown.iter().all(is_harmless), "{shown:?}");
        } else {
            let _seen = seen(&output);
        }
    }
}

/// `docs/commands.md` knows every command and every flag.
#[test]
fn the_page_leaves_nothing_out() {
    let page = include_str!("../../../../docs/commands.md");
    let desk = Desk::empty();
    for command in COMMANDS {
        assert!(page.contains(&format!("`{command}")), "{command} is not on the page");
        let help = desk.run(&format!("{command} --help"));
        let flags = help.split(|letter: char| !(letter.is_ascii_lowercase() || letter == '-'));
        for flag in flags.filter(|word| word.starts_with("--") && word.len() > 2 && *word != "--help") {
            if !flag.starts_with("---") {
                assert!(page.contains(&format!("`{flag}")), "{flag} of {command} is not on the page");
            }
        }
    }
}

/// The variables stood on it twice, each time without some commands; and the example of `compare` ended with another exit code than `compare` does.
#[test]
fn the_page_says_each_thing_once_and_truly() {
    let page = include_str!("../../../../docs/commands.md");
    let heads: Vec<_> = page.lines().filter(|line| line.starts_with("| variable |")).collect();
    assert_eq!(heads.len(), 1, "the variables have one table");
    let (_, code) = page.split_once("$ echo $?\n").unwrap();
    let means = "| 5 | `compare` found differences |";
    assert!(
        code.starts_with("5\n") && page.contains(means),
        "the differences in the example make exit code 5"
    );
}
