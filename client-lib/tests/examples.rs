//! Every example does what it says, against a played daemon.

mod support;

use support::{Daemon, Manners};

// An example is a program; its `main` is not called here.
macro_rules! example {
    ($name:ident, $path:literal) => {
        #[path = $path]
        #[allow(dead_code, unreachable_pub)]
        mod $name;
    };
}

example!(epoll_loop, "../examples/epoll_loop.rs");
example!(many_in_flight, "../examples/many_in_flight.rs");
example!(many_tasks, "../examples/many_tasks.rs");
example!(read_file, "../examples/read_file.rs");
example!(reconnect, "../examples/reconnect.rs");
example!(region_get, "../examples/region_get.rs");
example!(remote_read, "../examples/remote_read.rs");

/// Run an example beside a daemon that serves one session.
fn beside<T: Send>(daemon: &Daemon, example: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let example = scope.spawn(example);
        let serving = daemon.session().serve(false);
        let result = example.join().expect("the example does not panic");
        serving.join().expect("the daemon does not panic");
        result
    })
}

fn file(daemon: &Daemon, bytes: usize) -> std::path::PathBuf {
    let path = daemon.folder().join("file");
    let content: Vec<u8> = (0..bytes).map(|place| (place * 7 % 251) as u8).collect();
    std::fs::write(&path, content).expect("a folder");
    path
}

#[test]
fn read_file_reads_all_of_it() {
    let daemon = Daemon::start(Manners::default());
    let path = file(&daemon, 200_001);
    let bytes = beside(&daemon, || read_file::run(&daemon.socket(), &path).expect("no errors"));
    assert_eq!(bytes, 200_001);
}

#[test]
fn many_in_flight_reads_all_of_it() {
    let daemon = Daemon::start(Manners::default());
    let path = file(&daemon, 300_001);
    let run = || many_in_flight::run(&daemon.socket(), &path, 7).expect("no errors");
    assert_eq!(beside(&daemon, run), 300_001);
}

#[test]
fn many_tasks_read_all_of_it() {
    let daemon = Daemon::start(Manners::default());
    let path = file(&daemon, 500_001);
    let run = || many_tasks::run(&daemon.socket(), &path, 5).expect("no errors");
    assert_eq!(beside(&daemon, run), 500_001);
}

#[test]
fn remote_read_gets_the_bytes() {
    let daemon = Daemon::start(Manners::default());
    let path = file(&daemon, 50_000);
    let name = path.to_str().expect("a plain path");
    let run = || remote_read::run(&daemon.socket(), "beta", ("data", name), 20_000);
    let read = beside(&daemon, || run().expect("no errors"));
    assert_eq!(read, std::fs::read(&path).expect("the file")[..20_000]);
}

#[test]
fn region_get_gets_the_bytes() {
    let daemon = Daemon::start(Manners::default());
    let got = beside(&daemon, || region_get::run(&daemon.socket()).expect("no errors"));
    assert_eq!(got, b"the left edge");
}

#[test]
fn epoll_loop_ends_every_request() {
    let daemon = Daemon::start(Manners::default());
    let ended = beside(&daemon, || epoll_loop::run(&daemon.socket(), 1000).expect("no errors"));
    assert_eq!(ended, 1000);
}

#[test]
fn reconnect_goes_on_with_the_next_daemon() {
    let daemon = Daemon::start(Manners::default());
    let path = file(&daemon, 1000);
    let (died, first_is_dead) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (ask, asked) = std::sync::mpsc::channel();
        let (daemon, path) = (&daemon, &path);
        let between = move || {
            ask.send(()).expect("the test waits");
            first_is_dead.recv().expect("the test answers");
        };
        let run = move || reconnect::run(&daemon.socket(), path, between).expect("no errors");
        let example = scope.spawn(run);
        let first = daemon.session();
        let serving = first.serve(false);
        asked.recv().expect("the example reads first");
        first.die();
        serving.join().expect("the daemon does not panic");
        died.send(()).expect("the example waits");
        let serving = daemon.session().serve(false);
        assert_eq!(example.join().expect("the example does not panic"), 1000);
        serving.join().expect("the daemon does not panic");
    });
}
