//! Calls of clients by real daemons, here and at a peer: what is known of files, and changes of
//! them and of names.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use piped_client::call::{Entries, FileKind, Over, Range, Removed};
use piped_client::{
    Access, Call, Client, Handle, OpenError, OpenOptions, Queue, SessionError, Stat, Status,
};
use system_tests::offered::{LENGTH, Offered, PLACES};
use system_tests::process::{Daemon, eventually, pattern};

/// Threads of a node for calls that may block.
fn threads_aside(node: &Daemon) -> usize {
    let process = node.process.0.id();
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let names = tasks.filter_map(|task| fs::read(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with(b"piped-aside")).count()
}

/// Makes calls of something that is open.
struct Caller<'a> {
    client: &'a Client,
    queue: Queue,
    handle: Handle,
}

impl<'a> Caller<'a> {
    fn new(client: &'a Client, handle: Handle) -> Self {
        Self { client, queue: client.queue().expect("a queue"), handle }
    }

    fn call(&mut self, call: &Call<'_>) -> Result<Vec<u8>, Status> {
        let buffer = self.client.allocate(16 * 1024).expect("memory");
        let called = self.queue.call(&self.handle, call, buffer);
        let told = called.map(|(buffer, bytes)| buffer.as_slice()[..bytes].to_vec());
        told.map_err(|error| error.status().unwrap_or_else(|| panic!("no status: {error}")))
    }

    fn stat(&mut self, path: &[u8]) -> Result<Stat, Status> {
        self.call(&Call::Stat { path }).map(|answer| Stat::parse(&answer).expect("a stat"))
    }

    fn names(&mut self) -> Vec<String> {
        let (mut names, mut cookie) = (Vec::new(), Some(0));
        while let Some(at) = cookie {
            let call = Call::List { path: b"", cookie: at, stats: true };
            let answer = self.call(&call).expect("it may be read");
            let entries = Entries::parse(&answer).expect("entries");
            let told = entries.iter().map(|it| String::from_utf8_lossy(it.name).into_owned());
            names.extend(told);
            cookie = entries.next();
        }
        names.sort();
        names
    }
}

#[test]
fn a_stat_of_an_open_file_is_fresh_here_and_at_a_peer() {
    let Some(scene) = Offered::start() else { return };
    let client = scene.client();
    for peer in PLACES {
        let open = || client.open_export(peer, "data", "blocks", OpenOptions::read()).ok();
        let mut file = Caller::new(&client, eventually("it is open", open));
        let path = scene.root(peer).join("blocks");
        for length in [LENGTH as u64, 7] {
            fs::File::options()
                .write(true)
                .open(&path)
                .expect("ours")
                .set_len(length)
                .expect("cut");
            let (told, known) =
                (file.stat(b"").expect("open"), fs::metadata(&path).expect("there"));
            assert_eq!((told.kind, told.length), (FileKind::File, length), "{peer:?}");
            assert_eq!((told.inode, told.links), (known.ino(), 1));
            assert_eq!(told.mode, known.mode() & 0o7777);
            assert_eq!((told.user, told.group), (known.uid(), known.gid()));
            let modified = (known.mtime(), known.mtime_nsec() as u32);
            assert_eq!(told.modified, modified);
        }
        // What the handle does not give is refused, and changes nothing.
        let refused = file.call(&Call::Truncate { length: 0 });
        assert_eq!(refused, Err(Status::Denied), "{peer:?}");
        assert_eq!(file.stat(b"").expect("open").length, 7);
    }
    // The shard answers such a call itself: nobody was woken for it.
    assert_eq!(threads_aside(scene.alpha()), 0);
}

#[test]
fn a_file_is_cut_zeroed_and_hashed_here_and_at_a_peer() {
    let Some(scene) = Offered::start() else { return };
    let client = scene.client();
    for peer in PLACES {
        let open = || client.open_export(peer, "data", "blocks", OpenOptions::read_write()).ok();
        let mut file = Caller::new(&client, eventually("it is open", open));
        let path = scene.root(peer).join("blocks");
        let whole = Range { offset: 0, length: LENGTH as u64 };
        let told = file.call(&Call::Digest { range: whole }).expect("it may be read");
        assert_eq!(told, blake3::hash(&pattern(LENGTH)).as_bytes(), "{peer:?}");
        assert_eq!(file.call(&Call::Truncate { length: 5_000 }), Ok(Vec::new()));
        let middle = Range { offset: 1_000, length: 1_000 };
        assert_eq!(file.call(&Call::Zero { range: middle, release: false }), Ok(Vec::new()));
        let sync = Call::Sync { range: Range::default(), data_only: true };
        assert_eq!(file.call(&sync), Ok(Vec::new()));
        let mut expected = pattern(LENGTH)[..5_000].to_vec();
        expected[1_000..2_000].fill(0);
        assert!(fs::read(&path).expect("there") == expected, "{peer:?}");
        let beyond = Range { offset: 0, length: LENGTH as u64 };
        assert!(file.call(&Call::Digest { range: beyond }).is_err(), "it is shorter");
    }
    assert!(threads_aside(scene.alpha()) > 0, "what may block is no affair of the shard's");
}

#[test]
fn names_are_listed_and_changed_here_and_at_a_peer() {
    let Some(scene) = Offered::start() else { return };
    let client = scene.client();
    let names = Access { names: true, ..Access::READ };
    for peer in PLACES {
        let open = || client.open_directory(peer, "data", "", names).ok();
        let mut root = Caller::new(&client, eventually("it is open", open));
        assert_eq!(root.names(), ["below", "blocks"], "{peer:?}");
        let made = Call::MakeDirectory { path: b"a/b", mode: 0o750, parents: true };
        assert_eq!(root.call(&made), Ok(Vec::new()));
        let over = Over::Keep;
        let rename = Call::Rename { from: b"blocks", to: b"a/b/moved", over, durable: true };
        assert_eq!(root.call(&rename), Ok(Vec::new()));
        assert_eq!(root.call(&rename), Err(Status::NotFound), "once is once");
        assert_eq!(root.stat(b"a/b/moved").expect("it is there").length, LENGTH as u64);
        assert_eq!(root.stat(b"blocks"), Err(Status::NotFound));
        let remove = |path, kind| Call::Remove { path, kind };
        assert_eq!(root.call(&remove(b"a", Removed::Directory)), Err(Status::NotEmpty));
        assert_eq!(root.call(&remove(b"../secret", Removed::Any)), Err(Status::Denied));
        assert_eq!(root.call(&remove(b"a/b/moved", Removed::File)), Ok(Vec::new()));
        assert_eq!(root.names(), ["a", "below"], "{peer:?}");
        // A directory below, for reading alone.
        let open = || client.open_directory(peer, "data", "a", Access::READ).ok();
        let mut below = Caller::new(&client, eventually("it is open", open));
        assert_eq!(below.names(), ["b"]);
        assert_eq!(below.call(&remove(b"b", Removed::Any)), Err(Status::Denied));
        let unknown = client.open_directory(peer, "data", "nowhere", Access::READ);
        let refused = |error| match error {
            OpenError::Session(SessionError::Refused { status, .. }) => status,
            other => panic!("not refused: {other}"),
        };
        assert_eq!(unknown.map_err(refused).err(), Some(Status::NotFound), "{peer:?}");
    }
}

#[test]
fn a_directory_of_many_names_comes_in_parts_here_and_at_a_peer() {
    let Some(scene) = Offered::start() else { return };
    let client = scene.client();
    for peer in PLACES {
        let below = scene.root(peer).join("below");
        let expected: Vec<String> = (0..1_000).map(|number| format!("name-{number:04}")).collect();
        for name in &expected {
            fs::write(below.join(name), b"").expect("made");
        }
        let open = || client.open_directory(peer, "data", "below", Access::READ).ok();
        let mut root = Caller::new(&client, eventually("it is open", open));
        assert_eq!(root.names(), expected, "{peer:?}");
    }
}
