//! `oncegate completions`

use std::fs;
use std::process::Command;

use insta::assert_snapshot;

use crate::desk::Desk;
use crate::help::COMMANDS;

#[test]
fn every_shell_knows_every_command() {
    let desk = Desk::empty();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = desk.command(&format!("completions {shell}")).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{shell}");
        let script = String::from_utf8(output.stdout).unwrap();
        let words = COMMANDS.iter().flat_map(|command| command.split_whitespace());
        for word in words.chain(["--store", "--admin", "--json", "--once"]) {
            // fish says `-l store`.
            let word = if shell == "fish" { word.trim_start_matches('-') } else { word };
            assert!(script.contains(word), "{shell} does not know {word}");
        }
        fs::write(desk.path().join(shell), script).unwrap();
    }
    let bash = Command::new("bash").arg("-n").arg(desk.path().join("bash")).output().unwrap();
    assert!(bash.status.success() && bash.stderr.is_empty(), "{bash:?}");
}

/// Asked as bash asks it.
#[test]
fn bash_completes() {
    let desk = Desk::empty();
    fs::write(desk.path().join("bash"), desk.command("completions bash").output().unwrap().stdout).unwrap();
    let ask = "source ./bash; COMP_WORDS=(oncegate keys s); COMP_CWORD=2; _oncegate oncegate s keys; echo \"${COMPREPLY[@]}\"";
    let bash = Command::new("bash").current_dir(desk.path()).args(["-c", ask]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&bash.stdout), "show\n", "{bash:?}");
}

#[test]
fn bad_input() {
    let desk = Desk::empty();
    assert_snapshot!("nothing", desk.run("completions"));
    assert_snapshot!("unknown_shell", desk.run("completions tcsh"));
}
