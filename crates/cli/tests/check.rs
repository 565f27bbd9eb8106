//! `oncegate check`, as a user runs it: flags, variables and files in; stdout, stderr and exit code out.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be run should stop the test")]

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A folder with files, in which the command runs: names in what it says are the same on every machine.
struct Folder(tempfile::TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            // Some contain secrets; a warning about the mode would depend on the umask.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        Self(folder)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
        command.env_clear().current_dir(self.0.path()).arg("check").args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

/// Everything that a user sees of it.
fn seen(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    format!(
        "exit code: {}\n----- stdout\n{}----- stderr\n{}",
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr)
    )
}

const GOOD: &str = r#"
[upstream]
url = "http://127.0.0.1:3000/api"

[store]
url = "postgres://oncegate:hunter2hunter2@db.internal/oncegate?sslpassword=hunter2"

[admin]
token = "hunter2hunter2hunter2"

[scope]
from = "header"
header = "X-Tenant"
trusted_peers = ["10.0.0.0/8"]

[defaults]
profile = "off"

[[route]]
match = "POST /payments"
profile = "payments"
key_form = '[a-z]+-\d{12,}'
retention = "30m"
"#;

const API: &str = r#"{
  "openapi": "3.1.0",
  "info": { "title": "Shop", "version": "1" },
  "paths": {
    "/payments": {
      "post": { "operationId": "pay", "responses": { "409": { "description": "No money" } } }
    }
  }
}"#;

#[test]
fn a_good_file() {
    let folder = Folder::with(&[("good.toml", GOOD)]);
    insta::assert_snapshot!("good", seen(&folder.run(&["--config", "good.toml"])));
    insta::assert_snapshot!("good_json", seen(&folder.run(&["--config", "good.toml", "--json"])));
    insta::assert_snapshot!("good_contract", seen(&folder.run(&["--config", "good.toml", "--contract"])));
    insta::assert_snapshot!("no_file", seen(&folder.run(&["--upstream", "http://127.0.0.1:3000"])));
}

/// Probes and webhooks, without their secrets.
#[test]
fn what_finds_out_unknown_outcomes() {
    let settles = r#"
[upstream]
url = "http://127.0.0.1:3000"

[scope]
from = "header"
header = "X-Tenant"
trusted_peers = ["10.0.0.0/8"]

[defaults]
profile = "off"

[[route]]
match = "POST /payments"
profile = "payments"
forward_key = "derived"

[route.probe]
url = "https://api.example.com/charges?api_key=hunter2&key={forwarded_key}"
headers = { authorization = "Bearer {env:TOKEN}", x-literal = "hunter2" }
happened = [{ pointer = "/data/0/status", equals = "succeeded" }]
did_not_happen = [404]
answer = { status = 201, pointer = "/data/0" }

[[webhook]]
name = "provider"
scheme = "standard"
secrets = ["env:SECRET"]
record = { forwarded_key = "/data/key" }
happened = [{ pointer = "/type", equals = "charge.succeeded" }]
answer = { status = 201, pointer = "/data" }
"#;
    let folder = Folder::with(&[("settles.toml", settles)]);
    let run = |arguments: &[&str]| {
        let mut command = folder.command(arguments);
        command.env("TOKEN", "hunter2").env("SECRET", "whsec_aHVudGVyMmh1bnRlcjJodW50ZXIy");
        let seen = seen(&command.output().unwrap());
        assert!(!seen.contains("hunter2") && !seen.contains("aHVudGVy"), "{seen}");
        seen
    };
    insta::assert_snapshot!("settles", run(&["--config", "settles.toml"]));
    insta::assert_snapshot!("settles_json", run(&["--config", "settles.toml", "--json"]));
    // Without its secrets it cannot serve, and says so before it does.
    insta::assert_snapshot!("settles_without_secrets", seen(&folder.run(&["--config", "settles.toml"])));
}

#[test]
fn a_bad_file() {
    let bad = "[upstream]\nurl = \"http://127.0.0.1:3000\"\n\n[[route]]\nmatch = \"POST /payments\"\nretention = 3600\n";
    let folder = Folder::with(&[("bad.toml", bad)]);
    insta::assert_snapshot!("bad", seen(&folder.run(&["--config", "bad.toml"])));
    insta::assert_snapshot!("missing", seen(&folder.run(&["--config", "missing.toml"])));
    insta::assert_snapshot!("nothing", seen(&folder.run(&[])));
}

/// A route was added under another profile than the defaults, and a retry of an older key executed
/// again.
#[test]
fn routes_whose_keys_are_others_than_under_the_defaults() {
    let file = |defaults: &str, routes: &[(&str, &str)]| {
        let route = |(pattern, profile): &(&str, &str)| {
            format!("[[route]]\nmatch = \"{pattern}\"\nprofile = \"{profile}\"\n")
        };
        let routes: String = routes.iter().map(route).collect();
        format!(
            "[upstream]\nurl = \"http://127.0.0.1:3000\"\n[scope]\nfrom = \"header\"\nheader = \"x-tenant\"\n\
             trusted_peers = [\"10.0.0.0/8\"]\n[defaults]\nprofile = \"{defaults}\"\n{routes}"
        )
    };
    let notes = |text: &str| -> Vec<String> {
        let folder = Folder::with(&[("file.toml", text)]);
        let output = folder.run(&["--config", "file.toml"]);
        assert!(output.status.success());
        let told = String::from_utf8(output.stderr).unwrap();
        told.lines().filter_map(|line| line.strip_prefix("note: ")).map(str::to_owned).collect()
    };
    let mixed =
        [("POST /a", "lenient"), ("POST /b", "accepted"), ("POST /c", "stripe"), ("POST /d", "payments")];
    let told = notes(&file("ietf", &mixed));
    let starts =
        ["POST /a: `scope` and `key_syntax` other", "POST /b: `scope` other", "POST /c: `key_syntax` other"];
    assert_eq!(told.len(), starts.len(), "{told:?}");
    for (note, start) in told.iter().zip(starts) {
        assert!(note.starts_with(start) && note.contains("stop the old nodes first"), "{note}");
        assert!(note.contains("`formerly`"), "{note}");
    }
    // Where nothing serves a request before the route is added, there is no older record.
    assert_eq!(notes(&file("off", &mixed)), Vec::<String>::new());
    assert_eq!(notes(&file("lenient", &[("PATCH /a", "ietf")])), Vec::<String>::new());
}

#[test]
fn an_api() {
    let unprotected = API.replace("\"post\"", "\"delete\": {}, \"post\"");
    let folder = Folder::with(&[
        ("good.toml", GOOD),
        ("api.json", API),
        ("unprotected.json", &unprotected),
        ("garbage.json", "{ \"openapi\": \"3.1.0\",\n  oops }"),
        ("api.yaml", "openapi: 3.1.0\n"),
    ]);
    let check = |file: &str| seen(&folder.run(&["--config", "good.toml", "--openapi", file]));
    insta::assert_snapshot!("openapi", check("api.json"));
    let all = check("unprotected.json");
    assert!(all.starts_with("exit code: 1\n") && all.contains("\"x-idempotency\""));
    insta::assert_snapshot!("openapi_unprotected", all.split_once("----- stderr\n").unwrap().1);
    insta::assert_snapshot!("openapi_garbage", check("garbage.json"));
    insta::assert_snapshot!("openapi_yaml", check("api.yaml"));
    insta::assert_snapshot!("openapi_missing", check("missing.json"));
}

#[test]
fn one_form_at_a_time() {
    let folder = Folder::with(&[("good.toml", GOOD), ("api.json", API)]);
    for two in [
        ["--json", "--contract", ""],
        ["--contract", "--openapi", "api.json"],
        ["--json", "--openapi", "api.json"],
    ] {
        let two = two.into_iter().filter(|word| !word.is_empty());
        let arguments: Vec<_> = ["--config", "good.toml"].into_iter().chain(two).collect();
        let output = folder.run(&arguments);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{arguments:?}");
    }
}

/// Of the file, of variables and of flags: neither the store's password nor the admin token is said anywhere.
#[test]
fn no_secret_is_shown() {
    let folder = Folder::with(&[
        ("good.toml", GOOD),
        ("bad.toml", &GOOD.replace("url = \"postgres", "url = \"oracle")),
        ("broken.toml", &GOOD.replace("oncegate?sslpassword=hunter2\"", "oncegate?sslpassword=hunter2")),
        ("short.toml", &GOOD.replace("token = \"hunter2hunter2hunter2\"", "token = \"hunter2\"")),
        ("api.json", API),
    ]);
    let forms: [&[&str]; 5] = [&[], &["--json"], &["--contract"], &["--openapi", "api.json"], &["--help"]];
    for file in ["good.toml", "bad.toml", "broken.toml", "short.toml"] {
        for form in forms {
            let mut arguments = vec!["--config", file];
            arguments.extend(form);
            let output = seen(&folder.run(&arguments));
            assert!(!output.contains("hunter2"), "{arguments:?}\n{output}");
            for (name, value) in [
                ("ONCEGATE_STORE", "oracle://u:hunter2@h/"),
                ("ONCEGATE_STORE", "redis://:hunter2@h/"),
                ("ONCEGATE_ADMIN_TOKEN", "hunter2"),
                ("ONCEGATE_ADMIN_TOKEN", "hunter2hunter2hunter2"),
                ("ONCEGATE_UPSTREAM", "http://u:hunter2@h/"),
            ] {
                let output = seen(&folder.command(&arguments).env(name, value).output().unwrap());
                assert!(!output.contains("hunter2"), "{arguments:?} {name}\n{output}");
            }
        }
    }
}

/// For each setting: the flag before the variable, the variable before the file, the file before the default.
#[test]
fn flags_go_before_variables_which_go_before_the_file() {
    let file = "[upstream]\nurl = \"http://file:1\"\n[listen]\naddress = \"127.0.0.1:1\"\n[admin]\naddress = \"127.0.0.2:1\"\n\
                [store]\nurl = \"sqlite://file.db\"\n[defaults]\nprofile = \"payments\"\n";
    let folder =
        Folder::with(&[("file.toml", file), ("other.toml", "[upstream]\nurl = \"http://other:1\"\n")]);
    let shown =
        |flag: Option<(&str, &str)>, variable: Option<(&str, &str)>, is_with_file: bool, pointer: &str| {
            let mut arguments = vec!["--json"];
            if is_with_file {
                arguments.extend(["--config", "file.toml"]);
            }
            if let Some((name, value)) = flag {
                arguments.extend([name, value]);
            }
            let mut command = folder.command(&arguments);
            if !is_with_file {
                command.env("ONCEGATE_UPSTREAM", "http://default:1");
            }
            if let Some((name, value)) = variable {
                command.env(name, value);
            }
            let output = command.output().unwrap();
            let document: Value =
                serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", seen(&output)));
            document.pointer(pointer).unwrap().as_str().unwrap().to_owned()
        };
    // Flag, variable, where it is seen; then flag's, variable's, file's value and the default.
    let table = [
        (
            "--upstream",
            "ONCEGATE_UPSTREAM",
            "/upstream",
            ["http://flag:1", "http://variable:1", "http://file:1", "http://default:1"],
        ),
        (
            "--listen",
            "ONCEGATE_LISTEN",
            "/listen/address",
            ["127.0.0.1:3", "127.0.0.1:2", "127.0.0.1:1", "127.0.0.1:8080"],
        ),
        (
            "--admin",
            "ONCEGATE_ADMIN",
            "/admin/address",
            ["127.0.0.2:3", "127.0.0.2:2", "127.0.0.2:1", "127.0.0.1:9090"],
        ),
        (
            "--store",
            "ONCEGATE_STORE",
            "/store",
            ["memory:", "sqlite://variable.db", "sqlite://file.db", "sqlite://oncegate.db"],
        ),
        (
            "--profile",
            "ONCEGATE_PROFILE",
            "/routes/0/settings/profile",
            ["lenient", "stripe", "payments", "ietf"],
        ),
    ];
    for (flag, variable, pointer, [of_flag, of_variable, of_file, default]) in table {
        assert_eq!(shown(Some((flag, of_flag)), Some((variable, of_variable)), true, pointer), of_flag);
        assert_eq!(shown(None, Some((variable, of_variable)), true, pointer), of_variable);
        assert_eq!(shown(None, None, true, pointer), of_file);
        assert_eq!(shown(None, None, false, pointer), default);
    }
    // Which file.
    let other = [("ONCEGATE_CONFIG", "other.toml")];
    let upstream = |arguments: &[&str]| {
        let output = folder.command(arguments).envs(other).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["upstream"].clone()
    };
    assert_eq!(upstream(&["--json"]), "http://other:1");
    assert_eq!(upstream(&["--json", "--config", "file.toml"]), "http://file:1");
}

/// The token has a variable and no flag: flags are seen by whoever lists the processes.
#[test]
fn the_token_of_the_environment_goes_before_the_files() {
    let file = "[upstream]\nurl = \"http://file:1\"\n[admin]\naddress = \"0.0.0.0:1\"\nplaintext = true\n";
    let short = format!("{file}token = \"short\"\n");
    let folder = Folder::with(&[("none.toml", file), ("short.toml", &short)]);
    for file in ["none.toml", "short.toml"] {
        let mut command = folder.command(&["--json", "--config", file]);
        assert_eq!(command.output().unwrap().status.code(), Some(2));
        let output = command.env("ONCEGATE_ADMIN_TOKEN", "0123456789abcdef").output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["admin"]["token"], true);
        // Empty is not set.
        assert_eq!(command.env("ONCEGATE_ADMIN_TOKEN", "").output().unwrap().status.code(), Some(2));
    }
}

/// `oncegate check … | head`: readers that are gone, of data or of talk, are no error, and change no exit code.
#[test]
fn readers_that_leave_are_no_error() {
    let unprotected = API.replace("\"post\"", "\"delete\": {}, \"post\"");
    let folder = Folder::with(&[("good.toml", GOOD), ("unprotected.json", &unprotected)]);
    let forms: [(&[&str], i32); 5] = [
        (&[], 0),
        (&["--json"], 0),
        (&["--contract"], 0),
        (&["--openapi", "unprotected.json"], 1),
        (&["--listen", "nowhere"], 2),
    ];
    for (form, code) in forms {
        let mut arguments = vec!["--config", "good.toml"];
        arguments.extend(form);
        let gone = || Stdio::from(io::pipe().unwrap().1);
        let output = folder
            .command(&arguments)
            .stdout(gone())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{arguments:?}");
        let both = folder.command(&arguments).stdout(gone()).stderr(gone()).status().unwrap();
        assert_eq!(both.code(), Some(code), "{arguments:?}");
    }
}
