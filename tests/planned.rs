//! `pipectl plan` at real daemons: it says what the next transfer gets, and leaves no trace.
#![forbid(unsafe_code)]

use piped_client::{Client, OpenOptions};
use system_tests::process::{Daemon, Pair, Programs, eventually, words};

const BYTES: usize = 1 << 20;

fn run(daemon: &Daemon, arguments: &[&str]) -> (i32, String) {
    let output = daemon.pipectl(arguments).output().expect("it starts");
    (output.status.code().expect("it ended by itself"), words(&output))
}

fn read(alpha: &Daemon, rounds: usize) {
    let client = Client::connect(alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let blocks = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    let blocks = blocks.expect("it is there");
    for _ in 0..rounds {
        let buffer = client.allocate(BYTES).expect("memory");
        queue.read(&blocks, 0, buffer).expect("read");
    }
}

#[test]
fn it_says_what_the_next_read_of_a_peer_gets() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let Pair { alpha, beta, .. } = Pair::start(&programs, directory.path());
    read(&alpha, 60);
    // From here on costs stay as they are, and nothing is tried.
    let (code, text) = run(&beta, &["calibration", "frozen"]);
    assert_eq!(code, 0, "{text}");
    // Plans follow what moved a little after sixteen transfers: now there is one of these costs.
    read(&alpha, 20);
    let at_alpha = alpha.json(&["plan", "--from", "beta:data/blocks", "--bytes", "1MiB"]);
    let part = &at_alpha["parts"][0];
    assert_eq!(part["planned_by"], "beta", "{at_alpha}");
    assert!(part["forecast"]["stages"].as_array().is_some_and(|it| !it.is_empty()), "{part}");
    assert_eq!(part["forecast"]["chosen"], "", "{part}");
    // It says how to ask there.
    let there = part["ask_there"].as_str().expect("words").to_owned();
    let there: Vec<&str> = there.split(' ').skip(1).collect();
    beta.await_rest();
    let before = [beta.json(&["stages"]), beta.json(&["explain", "last"])];
    let said = eventually("the same, however often it is asked", || {
        let said = beta.json(&there);
        // The last answer to a question may be on its way.
        (0..100).all(|_| beta.json(&there) == said).then_some(said)
    });
    assert_eq!([beta.json(&["stages"]), beta.json(&["explain", "last"])], before);
    let said = &said["parts"][0]["forecast"];
    read(&alpha, 1);
    beta.await_rest();
    let got = &beta.json(&["explain", "last"])["explanation"];
    for field in ["chosen", "levels", "fragment_bytes", "shrink_bytes", "fragments", "depth"] {
        assert_eq!(said[field], got[field], "{field}: {said} {got}");
    }
    assert_eq!(said["stages"], got["stages"]);
    let near = said["predicted_seconds"].as_f64().expect("a number")
        / got["predicted_seconds"].as_f64().expect("a number");
    assert!((0.8..1.25).contains(&near), "{said} {got}");
    let (code, table) = run(&beta, &there);
    assert_eq!(code, 0, "{table}");
    for word in ["plan", "predicted", "Stages as known now", "net alpha", "Candidates", "chosen"] {
        assert!(table.contains(word), "{word}: {table}");
    }
}

#[test]
fn every_way_has_its_parts() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    let Pair { alpha, .. } = &pair;
    let own = directory.path().join("own");
    std::fs::write(&own, "x").expect("written");
    let own = own.display().to_string();
    let new = directory.path().join("new").display().to_string();
    let away = "beta:data/new";
    for (from, to, planned, piece) in [
        (own.as_str(), "memory", vec![true], false),
        ("-", own.as_str(), vec![true], false),
        ("-", away, vec![true], false),
        ("-", "beta:memory", vec![true], false),
        ("beta:memory", "-", vec![false], false),
        ("beta:data/blocks", "-", vec![false], false),
        (own.as_str(), away, vec![true], true),
        ("beta:data/blocks", new.as_str(), vec![false, true], true),
        (own.as_str(), new.as_str(), vec![true, true], true),
    ] {
        let said = alpha.json(&["plan", "--from", from, "--to", to, "--bytes", "8MiB"]);
        let parts = said["parts"].as_array().expect("a list");
        let here: Vec<bool> = parts.iter().map(|part| part["planned_by"].is_null()).collect();
        assert_eq!(here, planned, "{from} {to}: {said}");
        assert_eq!(said["piece_bytes"] == 1 << 20, piece, "{from} {to}: {said}");
        for part in parts.iter().filter(|part| part["planned_by"].is_null()) {
            let forecast = &part["forecast"];
            assert!(forecast["predicted_seconds"].as_f64() > Some(0.0), "{from} {to}: {said}");
            assert!(forecast["chosen"] != "" && forecast["fragment_bytes"] != 0, "{said}");
        }
    }
    assert!(!std::path::Path::new(&new).exists(), "nothing is made");
    assert_eq!(alpha.number("requests"), 0, "nothing is asked");
}

#[test]
fn what_cannot_be_planned_says_why() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut pair = Pair::start(&programs, directory.path());
    let plan = |daemon: &Daemon, words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        run(daemon, &[&["plan"], &words[..]].concat())
    };
    for (words, code, hint) in [
        ("--from gamma:data/f --bytes 1MiB", 6, "pipectl peers"),
        ("--from :data/f --bytes 1MiB", 6, "no export `data`"),
        ("--from /nowhere/f --bytes 1MiB", 6, "/nowhere/f"),
        ("--from /dev/null --bytes 1MiB", 4, "regular file"),
        ("--from beta:data/blocks --bytes 0", 4, "how many"),
        ("--from beta:data/blocks --bytes 2GiB", 4, "at most"),
        ("--from beta:data/blocks --bytes 1MB", 2, "1MB"),
        ("--from - --to memory --bytes 1MiB", 4, "nothing is cut"),
        ("--from - --for delta --bytes 1MiB", 6, "pipectl peers"),
    ] {
        let (found, text) = plan(&pair.alpha, words);
        assert!(found == code && text.contains(hint), "{words}: {found} {text}");
    }
    let (code, text) = plan(&pair.beta, "--from :data/none --bytes 1MiB");
    assert!(code == 6 && text.contains("no such file"), "{text}");
    pair.beta.process.signal(rustix::process::Signal::KILL);
    pair.beta.process.exit();
    let said = system_tests::process::eventually("the lane is down", || {
        let (code, text) = plan(&pair.alpha, "--from - --to beta:data/f --bytes 1MiB");
        (code != 0).then_some((code, text))
    });
    assert!(said.1.contains("lane to the peer is down"), "{said:?}");
}
