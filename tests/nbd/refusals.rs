//! What the plugin says to somebody who uses it wrongly.

use system_tests::nbd::run;
use system_tests::process::words;

use super::Stage;

#[test]
fn wrong_parameters_and_missing_things_are_named() {
    let Some(stage) = Stage::set() else { return };
    let refusals: &[(&[&str], &str)] = &[
        (&[], "nothing to serve: give [PEER:]EXPORT/PATH"),
        (&["beta:data/blocks", "region=r"], "there can be only one of them"),
        (&["beta:data/blocks", "quues=3"], "unknown parameter quues"),
        (&["beta:data/blocks", "queues=0"], "queues must be from 1 to 256, not 0"),
        (&["beta:data/blocks", "class=fast"], "class must be latency or bulk, not fast"),
        (&["beta:data/blocks", "timeout=soon"], "timeout"),
        (&["beta:data", "create=1M"], "create= makes one file"),
        (&["path=blocks"], "nothing to serve"),
        (&["beta:/blocks"], "no export is named"),
        (&[":data/blocks"], "no peer is named"),
        (&["path=blocks", "beta:data"], "what is served is named twice"),
        (&["beta:data/blocks", "path=other"], "path is given twice"),
        (&["beta:data/none"], "beta:data/none: "),
        (&["beta:nothing/blocks"], "beta:nothing/blocks: "),
        (&["gamma:data/blocks"], "gamma:data/blocks: "),
        (&["beta:data/../../etc/passwd"], "beta:data/../../etc/passwd: "),
        (&["region=none"], "region none: "),
    ];
    for (parameters, wanted) in refusals {
        let output = run(stage.plugin.nbdkit(&stage.pair.alpha, parameters).args(["-U", "-"]));
        let told = words(&output);
        assert!(!output.status.success() && told.contains(wanted), "{parameters:?}: {told}");
    }
}

#[test]
fn a_daemon_that_is_not_there_is_named_with_its_socket() {
    let Some(mut stage) = Stage::set() else { return };
    stage.pair.alpha.process.signal(rustix::process::Signal::KILL);
    stage.pair.alpha.process.exit();
    let output =
        run(stage.plugin.nbdkit(&stage.pair.alpha, &["beta:data/blocks"]).args(["-U", "-"]));
    let (told, socket) = (words(&output), stage.pair.alpha.client_socket());
    assert!(!output.status.success() && told.contains(socket.to_str().expect("text")), "{told}");
}

/// A client that chooses a file by its name cannot leave the export, nor have a file twice.
#[test]
fn names_of_clients_are_plain() {
    let Some(stage) = Stage::set().filter(|_| system_tests::nbd::are_there(&["nbdinfo"])) else {
        return;
    };
    let served = stage.plugin.serve(&stage.pair.alpha, "names", &["beta:data"]);
    for name in ["./blocks", "x/../blocks", "blocks/", "/blocks", "none", ""] {
        let nbdinfo = &mut system_tests::process::command("nbdinfo".as_ref());
        let output = run(nbdinfo.arg(served.uri_of(name)));
        assert!(!output.status.success(), "{name}: {}", words(&output));
    }
    let _ = system_tests::nbd::succeed("nbdinfo", &[&served.uri_of("blocks")]);
}

/// An export that may only be read is a device that may only be read.
#[test]
fn a_device_of_an_export_without_writes_is_read_only() {
    let Some(stage) = Stage::set().filter(|_| system_tests::nbd::are_there(&["nbdinfo"])) else {
        return;
    };
    stage.pair.beta.reload("write = true", "write = false");
    let served = stage.plugin.serve(&stage.pair.alpha, "read-only", &["beta:data/blocks"]);
    let told = system_tests::nbd::succeed("nbdinfo", &[&served.uri()]);
    assert!(told.contains("is_read_only: true"), "{told}");
}
