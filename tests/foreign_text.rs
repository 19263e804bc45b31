//! Text that peers and clients chose, wherever it is shown by real programs: it moves no cursor,
//! makes no line and reorders nothing, and for programs it stays what it is.

use std::fs;

use piped_client::{Access, Client};
use piped_core::access::{Access as Rights, Creation, OpenKind};
use piped_core::status::Status;
use piped_wire::Message;
use system_tests::process::{Daemon, PATIENCE, Programs, eventually, free_address, words};

use self::peer::RawPeer;

#[path = "../daemon/tests/support/peer.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod peer;

/// What no client's name may have is in none of these; a right-to-left override and a control
/// character of C1 are.
const SLY: &str = "sly\u{202e}gpj.exe\u{9b}2Jx";
const SLY_SHOWN: &str = "sly\\u{202e}gpj.exe\\u{9b}2Jx";

/// A terminal obeys nothing of it, and it stands in the order in which it was written.
fn check(what: &str, text: &str) {
    let hostile = |it: char| it == '\u{202e}' || it.is_control() && it != '\n' && it != '\t';
    let found: Option<usize> = text.find(hostile);
    assert_eq!(found, None, "{what}: {text:?}");
}

fn open(peer: &mut RawPeer, kind: OpenKind, name: &str, path: &str, create: Creation) -> Status {
    let (access, name_length) = (Rights::READ_WRITE, name.len() as u8);
    let open = Message::Open { ticket: 1, kind, access, create, name_length };
    peer.send(open, &[name.as_bytes(), path.as_bytes()].concat());
    match peer.receive() {
        Message::Opened { status, .. } => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_that_others_chose_command_no_terminal() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let (place, address) = (directory.path(), free_address());
    let root = place.join("root");
    fs::create_dir(&root).expect("made");
    let settings = format!(
        "[listen]\naddress = \"{address}\"\n\n[exports.data]\npath = \"{}\"\nwrite = true\n",
        root.display()
    );
    let beta = Daemon::start(&programs, place, "beta", &settings);

    // A peer's. With control characters they are no names, and nobody hears of them.
    let mut peer = RawPeer::connect(address, "mallory");
    for path in
        ["\u{1b}[2J\u{1b}[1;1Hforged", "x\n2026-01-01T00:00:00Z ERROR piped: forged", "\u{7f}"]
    {
        assert_eq!(
            open(&mut peer, OpenKind::File, "data", path, Creation::OPEN),
            Status::Invalid,
            "{path:?}"
        );
    }
    assert_eq!(fs::read_dir(&root).expect("there").count(), 0, "nothing was made");
    assert_eq!(open(&mut peer, OpenKind::Region, SLY, "", Creation::No), Status::NotFound);
    assert_eq!(open(&mut peer, OpenKind::File, "data", SLY, Creation::No), Status::NotFound);
    eventually("the log has them", || (beta.log().matches(SLY_SHOWN).count() >= 2).then_some(()));
    let log = beta.log();
    check("the log", &log);
    assert!(!log.contains("forged"), "{log}");

    // A client's, and what it is told.
    let client = Client::connect(beta.client_socket()).expect("it serves");
    let memory = client.allocate(4096).expect("memory");
    let _region = client.export_region(SLY, memory, Access::READ).expect("a name");
    let _channel = client.offer_channel(SLY).expect("a name");
    let error = client.open_region(None, "no\u{202e}ne", Access::READ).expect_err("there is none");
    check("an error of the library", &error.to_string());
    assert!(error.to_string().contains("no\\u{202e}ne"), "{error}");

    // What operators see.
    let said = |arguments: &[&str]| {
        let output = beta.pipectl(arguments).output().expect("it starts");
        assert!(output.status.success(), "{arguments:?}: {}", words(&output));
        let text = String::from_utf8(output.stdout).expect("text");
        check(&format!("{arguments:?}"), &text);
        text
    };
    let table = said(&["exports"]);
    assert_eq!(table.matches(SLY_SHOWN).count(), 2, "{table}");
    let json = said(&["exports", "--json"]);
    assert!(json.is_ascii(), "{json}");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["regions"][0]["name"], SLY);
    for arguments in
        [&["status"][..], &["clients"], &["peers"], &["stages"], &["transfers"], &["limits"]]
    {
        let _ = said(arguments);
    }
    let output = beta.pipectl(["plan", "--from", SLY]).output().expect("it starts");
    assert!(!output.status.success());
    check("stderr", &String::from_utf8_lossy(&output.stderr));
    let page = system_tests::http::over_unix(&beta.admin_socket(), &system_tests::http::get("/"));
    check("the page", &page.1);
    let metrics =
        system_tests::http::over_unix(&beta.admin_socket(), &system_tests::http::get("/metrics"));
    check("the metrics", &metrics.1);

    // What they pass on.
    let dump = place.join("dump.tar");
    let _ = said(&["support-dump", "--show-paths", dump.to_str().expect("text")]);
    let mut archive = tar::Archive::new(fs::File::open(&dump).expect("made"));
    let mut parts = 0;
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("whole");
        let name = entry.path().expect("named").display().to_string();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut entry, &mut text).expect("text");
        check(&name, &text);
        if name.ends_with("exports.json") {
            let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(json["regions"][0]["name"], SLY);
        }
        parts += 1;
    }
    assert!(parts > 5, "{parts}");
}
