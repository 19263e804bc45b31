//! Ranges of files that clients lock, here and at a peer, and files that their node copies.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;

use piped_client::call::{COPY_BYTES_MAX, Lock};
use piped_client::{
    Access, AsyncClient, AsyncDirectory, Calls, Cause, Client, ClientBuilder, Directory, Handle,
    OpenOptions, Queue, Status, SubmitFault, TokioRuntime,
};
use rustix::process::Signal;
use system_tests::offered::{LENGTH, Offered, PLACES};
use system_tests::process::{BLOCKS_BYTES, Pair, Programs, command, eventually, pattern, words};

fn file(client: &Client, peer: Option<&str>) -> Handle {
    let options = OpenOptions::read_write();
    eventually("it is open", || client.open_export(peer, "data", "blocks", options).ok())
}

fn take(queue: &mut Queue, file: &Handle, lock: Lock) -> Option<Status> {
    match Calls::new(queue, file).try_lock(0..100, lock) {
        Ok(()) => None,
        Err(error) => Some(error.status().unwrap_or_else(|| panic!("{error}"))),
    }
}

#[test]
fn a_range_is_one_clients_until_it_gives_it_up_or_goes() {
    let Some(scene) = Offered::start() else { return };
    for peer in PLACES {
        let [one, other] = [scene.client(), scene.client()];
        let (first, second) = (file(&one, peer), file(&other, peer));
        let [mut queue, mut others] = [&one, &other].map(|it| it.queue().expect("a queue"));
        assert_eq!(take(&mut queue, &first, Lock::Exclusive), None);
        assert_eq!(take(&mut others, &second, Lock::Shared), Some(Status::Locked));
        // Behind it is nobody's.
        Calls::new(&mut others, &second).try_lock(100..100, Lock::Exclusive).expect("free");
        Calls::new(&mut others, &second).try_lock(0..0, Lock::None).expect("given up");
        assert_eq!(take(&mut queue, &first, Lock::None), None);
        assert_eq!(take(&mut others, &second, Lock::Exclusive), None);
        // Who waits gets it when the other has gone.
        let waiting = std::thread::spawn(move || {
            let mut calls = Calls::new(&mut queue, &first);
            calls.lock(0..100, Lock::Exclusive, Duration::from_secs(60))
        });
        drop((others, second, other));
        waiting.join().expect("no panic").expect("locked");
        // What a handle has ends with it.
        let third = file(&one, peer);
        let mut queue = one.queue().expect("a queue");
        eventually("it is free", || {
            (take(&mut queue, &third, Lock::Exclusive).is_none()).then_some(())
        });
        let mut calls = Calls::new(&mut queue, &third);
        let impatient = calls.lock(0..u64::MAX, Lock::Shared, Duration::ZERO);
        assert_eq!(impatient.err().and_then(|it| it.status()), Some(Status::Invalid));
    }
}

/// `flock` of util-linux locks whole files otherwise; Python has locks of ranges.
#[test]
fn programs_of_the_node_see_the_locks_of_clients() {
    let Some(scene) = Offered::start() else { return };
    let try_lock = |peer| {
        let text = "import fcntl, sys\n\
                    file = open(sys.argv[1], 'r+b')\n\
                    try:\n    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 100)\n\
                    except OSError:\n    print('locked')\n\
                    else:\n    print('free')\n";
        let mut python = command("python3".as_ref());
        python.args(["-c", text]).arg(scene.root(peer).join("blocks"));
        let output = python.output().ok()?;
        assert!(output.status.success(), "{}", words(&output));
        Some(String::from_utf8(output.stdout).expect("text"))
    };
    if try_lock(None).is_none() {
        return println!("skipped: no python3");
    }
    let client = scene.client();
    let mut queue = client.queue().expect("a queue");
    for peer in PLACES {
        let file = file(&client, peer);
        assert_eq!(try_lock(peer).as_deref(), Some("free\n"));
        assert_eq!(take(&mut queue, &file, Lock::Exclusive), None);
        assert_eq!(try_lock(peer).as_deref(), Some("locked\n"));
        assert_eq!(take(&mut queue, &file, Lock::None), None);
        assert_eq!(try_lock(peer).as_deref(), Some("free\n"));
    }
}

#[test]
fn a_handle_that_lost_its_locks_with_a_daemon_serves_nothing_more() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut pair = Pair::start(&programs, directory.path());
    let builder = ClientBuilder::new().reconnect(Duration::from_secs(60));
    let client = builder.connect(pair.alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let open = |client: &Client| file(client, Some("beta"));
    let (locked, plain) = (open(&client), open(&client));
    assert_eq!(take(&mut queue, &locked, Lock::Exclusive), None);
    // The peer's daemon restarts: the plain handle is opened again, the other one is gone.
    pair.beta.process.signal(Signal::KILL);
    let settings = pair.settings.clone();
    pair.beta.restart(&settings[1]);
    eventually("the plain one is read from the next daemon", || {
        let buffer = client.allocate(4096).expect("memory");
        queue.read(&plain, 0, buffer).ok()
    });
    assert_eq!(take(&mut queue, &locked, Lock::Exclusive), Some(Status::Gone));
    // The client's own daemon restarts: the client knows.
    let again = open(&client);
    assert_eq!(take(&mut queue, &again, Lock::Exclusive), None);
    pair.alpha.process.signal(Signal::KILL);
    pair.alpha.restart(&settings[0]);
    client.reconnect().expect("it serves again");
    let buffer = client.allocate(4096).expect("memory");
    queue.read(&plain, 0, buffer).expect("the plain one is open");
    let buffer = client.allocate(4096).expect("memory");
    let error = queue.read(&again, 0, buffer).expect_err("it has lost its lock");
    assert!(matches!(error.cause, Cause::NotSubmitted(SubmitFault::HandleLost)), "{error}");
    assert_eq!(plain.len() as usize, BLOCKS_BYTES);
}

#[test]
fn a_file_is_copied_by_its_node_holes_and_all() {
    let Some(scene) = Offered::start() else { return };
    let client = scene.client();
    let mut queue = client.queue().expect("a queue");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    for peer in PLACES {
        let root = scene.root(peer);
        let access = Access::READ_WRITE;
        let data =
            eventually("it is open", || Directory::open(&client, peer, "data", "", access).ok());
        let sparse = fs::File::create(root.join("sparse")).expect("made");
        sparse.set_len(1 << 30).expect("long");
        for name in ["copy", "hollow", "again"] {
            fs::write(root.join(name), "").expect("written");
        }
        let mut calls = data.calls(&mut queue);
        assert_eq!(calls.copy_all("blocks", "copy").expect("copied"), LENGTH as u64);
        assert!(fs::read(root.join("copy")).expect("there") == pattern(LENGTH));
        assert_eq!(calls.copy_all("sparse", "hollow").expect("copied"), 1 << 30);
        let facts = fs::metadata(root.join("hollow")).expect("there");
        assert!(facts.len() == 1 << 30 && 512 * facts.blocks() < 1 << 20, "{facts:?}");
        assert_eq!(calls.copy("blocks", "copy", 10..LENGTH as u64 + 10).expect("copied"), 99_990);
        for (from, to, status) in [
            ("blocks", "blocks", Status::Invalid),
            ("blocks", "gone", Status::NotFound),
            ("below", "copy", Status::IsDirectory),
            ("blocks", "../copy", Status::Denied),
        ] {
            let refused = calls.copy(from, to, 0..1).expect_err(from);
            assert_eq!(refused.status(), Some(status), "{from} {to}");
        }
        let most = calls.copy("blocks", "copy", 0..COPY_BYTES_MAX + 1).expect_err("too long");
        assert_eq!(most.status(), Some(Status::Invalid));
        // Who may not write there does not copy.
        let reads = Directory::open(&client, peer, "data", "", Access::READ).expect("open");
        let refused = reads.calls(&mut queue).copy("blocks", "copy", 0..1).expect_err("read only");
        assert_eq!(refused.status(), Some(Status::Denied));
        let socket = scene.alpha().client_socket();
        let copied = runtime.block_on(async {
            let tasks = Arc::new(TokioRuntime::current().expect("inside"));
            let client = AsyncClient::open(ClientBuilder::new(), Some(socket), tasks).await;
            let client = client.expect("it serves");
            let data = AsyncDirectory::open(&client, peer, "data", "", access).await.expect("open");
            let queue = client.queue().await.expect("a queue");
            data.calls(&queue).copy_all("blocks", "again").await
        });
        assert_eq!(copied.expect("copied"), LENGTH as u64);
        assert!(fs::read(root.join("again")).expect("there") == pattern(LENGTH));
        for name in ["sparse", "hollow", "copy", "again"] {
            fs::remove_file(root.join(name)).expect("there");
        }
    }
}
