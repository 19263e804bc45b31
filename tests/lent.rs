//! Memory that programs lend, with real daemons: every kind of request on every kind of memory, who
//! pays when memory is cut under requests, and whose it is in the end.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use piped_client::{
    Access, Buffer, Cause, Client, ClientBuilder, LendError, Lent, OpenOptions, PartError, Piece,
    Queue, Request, RequestError, Status, SubmitFault, Tag,
};
use piped_ring::LentKind;
use piped_ring::handshake::{Reply, Request as Asked};
use piped_sim::Random;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::Signal;
use system_tests::attack::{HELLO, Neighbour, ask, connect};
use system_tests::process::{
    BLOCKS_BYTES, Daemon, Pair, Programs, drop_cached, eventually, pattern,
};

const MIB: usize = 1 << 20;

/// Memory of a program, with a way to look at it that is not the library's.
struct Own {
    lent: Lent,
    file: Option<File>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sealed,
    Private,
    Loose,
}

const KINDS: [Kind; 3] = [Kind::Sealed, Kind::Private, Kind::Loose];

fn memfd(length: usize, seals: SealFlags) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(c"own", flags).expect("a memfd");
    rustix::fs::ftruncate(&fd, length as u64).expect("a length");
    rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
    fd.into()
}

/// Pages that nobody else has, and that are never unmapped.
fn private_pages(length: usize) -> *mut u8 {
    let (null, prot) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: new memory, wherever the kernel likes.
    let start =
        unsafe { libc::mmap(null, length, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast()
}

/// A file of memory with a name, which is gone at once.
fn shared(length: usize) -> File {
    let file = tempfile::tempfile_in("/dev/shm").expect("a file of memory");
    file.set_len(length as u64).expect("a length");
    file
}

fn lend(client: &Client, kind: Kind, length: usize) -> Own {
    match kind {
        Kind::Sealed => {
            let file = memfd(length, SealFlags::SHRINK);
            Own { lent: client.lend_memfd(&file).expect("lent"), file: Some(file) }
        }
        Kind::Loose => {
            let file = shared(length);
            Own { lent: client.lend_shared(&file).expect("lent"), file: Some(file) }
        }
        Kind::Private => {
            // SAFETY: the pages are new, nobody else uses them, and they are never unmapped.
            let lent = unsafe { client.lend_private(private_pages(length), length) };
            Own { lent: lent.expect("lent"), file: None }
        }
    }
}

impl Own {
    /// The bytes at a place, as the program sees them in its own way.
    fn see(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        match &self.file {
            Some(file) => file.read_exact_at(&mut bytes, offset as u64).expect("all there"),
            None => {
                let buffer = self.lent.buffer(offset, length).expect("not under way");
                bytes.copy_from_slice(buffer.as_slice());
            }
        }
        bytes
    }

    /// A buffer with these bytes in it.
    fn with(&self, offset: usize, bytes: &[u8]) -> Buffer {
        let mut buffer = self.lent.buffer(offset, bytes.len()).expect("free");
        buffer.write_at(0, bytes).expect("inside");
        buffer
    }
}

/// Lengths and places, some of them aligned for direct access.
const PLACES: [(usize, usize); 5] =
    [(0, 4096), (8192, 64 << 10), (100_003, 777), (131_072, MIB), (1_300_000, 600_001)];

#[test]
fn every_request_moves_bytes_of_every_kind_of_memory() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    let local = directory.path().join("local");
    fs::write(&local, pattern(BLOCKS_BYTES)).expect("written");
    drop_cached(&local);
    for kind in KINDS {
        moves_all(&pair, &local, kind);
    }
    for daemon in [&pair.alpha, &pair.beta] {
        daemon.await_rest();
        assert_eq!((daemon.number("corrupt_frames"), daemon.number("retries")), (0, 0));
    }
}

fn moves_all(pair: &Pair, local: &Path, kind: Kind) {
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let own = lend(&client, kind, 2 * MIB + 5 * 4096);
    let blocks = pattern(BLOCKS_BYTES);
    assert_eq!(own.lent.buffer(0, 1).expect("free").try_slice().is_some(), kind == Kind::Private);
    // Files, here and there.
    let both = OpenOptions::read_write;
    let files = [
        client.open_file(local, both()).expect("it is there"),
        client.open_export(Some("beta"), "data", "blocks", both()).expect("it is there"),
    ];
    let made = client.open_export(Some("beta"), "data", "made", both().create(true));
    let made = made.expect("made");
    for (number, file) in files.iter().enumerate() {
        for (offset, length) in PLACES {
            let at = offset * 2 % (BLOCKS_BYTES - length);
            let buffer = own.lent.buffer(offset, length).expect("free");
            let (buffer, bytes) = queue.read(file, at as u64, buffer).expect("read");
            drop(buffer);
            assert_eq!(bytes, length);
            let seen = own.see(offset, length);
            assert!(seen == blocks[at..at + length], "{kind:?} {number}: {length} at {offset}");
        }
    }
    let scratch = local.with_extension("scratch");
    let here = client.open_file(&scratch, both().create(true)).expect("made");
    let paths = [scratch, local.with_file_name("root").join("made")];
    for ((file, path), shift) in [(&here, &paths[0]), (&made, &paths[1])].into_iter().zip([3, 5]) {
        for (offset, length) in PLACES {
            let bytes: Vec<u8> = blocks[..length].iter().map(|byte| byte ^ shift).collect();
            queue.write(file, offset as u64, own.with(offset, &bytes)).expect("written");
            queue.sync(file).expect("synced");
            let mut there = vec![0; length];
            let written = File::open(path).expect("it is there");
            written.read_exact_at(&mut there, offset as u64).expect("as long");
            assert!(there == bytes, "{kind:?}: {length} at {offset} of {}", path.display());
        }
    }
    // Regions in lent memory: gets and puts of the node itself, and of another one.
    for (socket, peer) in
        [(pair.alpha.client_socket(), None), (pair.beta.client_socket(), Some("beta"))]
    {
        let exporter = Client::connect(socket).expect("it serves");
        let theirs = lend(&exporter, kind, 2 * MIB);
        let region = theirs.with(4096, &blocks[..MIB]);
        let export = exporter.export_region("lent", region, Access::READ_WRITE).expect("offered");
        let handle = client.open_region(peer, "lent", Access::READ_WRITE).expect("offered");
        let buffer = own.lent.buffer(0, MIB).expect("free");
        drop(queue.read(&handle, 0, buffer).expect("got"));
        assert!(own.see(0, MIB) == blocks[..MIB], "{kind:?}: a get of {peer:?}");
        queue.write(&handle, 7, own.with(0, b"there")).expect("put");
        let mut seen = [0; 5];
        export.read_at(7, &mut seen).expect("inside");
        assert_eq!(&seen, b"there", "{kind:?}: a put to {peer:?}");
        drop(export.close().expect("nobody uses it"));
    }
    // A region of the other node, as the source and target of lent memory.
    let owner = Client::connect(pair.beta.client_socket()).expect("it serves");
    let mut memory = owner.allocate(MIB).expect("memory");
    memory.as_mut_slice().copy_from_slice(&blocks[7..MIB + 7]);
    let theirs = owner.export_region("theirs", memory, Access::READ_WRITE).expect("offered");
    let handle = client.open_region(Some("beta"), "theirs", Access::READ_WRITE).expect("offered");
    let (buffer, _) = queue.read(&handle, 0, own.lent.buffer(33, MIB).expect("free")).expect("got");
    drop(buffer);
    assert!(own.see(33, MIB) == blocks[7..MIB + 7], "{kind:?}: a get of another node's");
    queue.write(&handle, 0, own.with(77, &blocks[9..MIB + 9])).expect("put");
    let mut seen = vec![0; MIB];
    theirs.read_at(0, &mut seen).expect("inside");
    assert!(seen == blocks[9..MIB + 9], "{kind:?}: a put to another node's");
    // Pieces, packed into lent memory.
    let pieces = client.pieces(&[Piece::new(3, 0, 8).repeat(1000, 512, 8)]).expect("a table");
    let buffer = own.lent.buffer(4097, 8000).expect("free");
    let done = queue.run(Request::read_pieces(&handle, &pieces, buffer)).expect("got");
    drop(done);
    let packed: Vec<u8> =
        (0..1000).flat_map(|row| blocks[9 + 3 + row * 512..][..8].to_vec()).collect();
    assert!(own.see(4097, 8000) == packed, "{kind:?}: pieces");
    // Messages, between both nodes and within one.
    for (peer, receiver) in [(Some("beta"), &owner), (None, &client)] {
        let mail = receiver.offer_channel("mail").expect("offered");
        let to = eventually("it is offered", || client.open_channel(peer, "mail").ok());
        for length in [100, 5000, MIB] {
            let message = &blocks[length / 2..length / 2 + length];
            let mut receiving = receiver.queue().expect("a queue");
            let into = match peer {
                None => own.lent.buffer(MIB + 4096, length).expect("free"),
                Some(_) => receiver.allocate(length).expect("memory"),
            };
            let wait = Request::receive(&mail, Tag::Any, into);
            let pending = receiving.submit(wait).expect("room");
            receiving.flush();
            queue.send(&to, 7, own.with(50, message)).expect("sent");
            let done = pending.wait(&mut receiving).expect("received");
            let mut got = vec![0; length];
            done.payload.read_at(0, &mut got).expect("inside");
            assert!(got == message, "{kind:?}: a message of {length} to {peer:?}");
        }
    }
}

#[test]
fn what_is_not_what_it_is_said_to_be_is_refused_with_a_text_and_the_session_goes_on() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let more = "[limits.client]\nlent = \"8MiB\"\n[limits.user]\nlent = \"12MiB\"\n";
    let daemon = Daemon::start(&programs, directory.path(), "alpha", more);
    let disk = directory.path().join("disk");
    fs::write(&disk, pattern(MIB)).expect("written");
    let options = |path: &Path| File::options().read(true).write(true).open(path).expect("opens");
    let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
    let own = rustix::process::getpid();
    let pidfd = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty());
    let name = PathBuf::from(format!("/dev/shm/piped-lent-{}", std::process::id()));
    File::create(&name).expect("made").set_len(MIB as u64).expect("a length");
    let (reader, loose) = (File::open(&name).expect("opens"), options(&name));
    fs::remove_file(&name).expect("removed");
    let sealed = memfd(MIB, SealFlags::SHRINK);
    let wrong: Vec<(&str, OwnedFd, u64, LentKind)> = vec![
        ("not a memfd", options(&disk).into(), MIB as u64, LentKind::Loose),
        ("not a memfd", File::open("/proc/self/maps").expect("opens").into(), 0, LentKind::Loose),
        ("not a memfd", options(Path::new("/dev/zero")).into(), 4096, LentKind::Sealed),
        ("not a memfd", File::open("/dev/shm").expect("opens").into(), 40, LentKind::Loose),
        ("not a memfd", pidfd.expect("a pidfd"), 4096, LentKind::Sealed),
        ("not a memfd", pipe, 4096, LentKind::Sealed),
        ("cannot be written", reader.into(), MIB as u64, LentKind::Loose),
        ("not sealed", memfd(MIB, SealFlags::GROW).into(), MIB as u64, LentKind::Sealed),
        ("not sealed", loose.try_clone().expect("one more").into(), MIB as u64, LentKind::Sealed),
        ("must be between 1 and", memfd(0, SealFlags::SHRINK).into(), 0, LentKind::Sealed),
        ("lend it as it is", sealed.try_clone().expect("it").into(), 4096, LentKind::Sealed),
        ("lend it as it is", sealed.try_clone().expect("it").into(), 2 << 20, LentKind::Sealed),
        ("limits.client.lent", memfd(9 * MIB, SealFlags::SHRINK).into(), 9 << 20, LentKind::Sealed),
        ("limits.client.lent", sealed.try_clone().expect("it").into(), u64::MAX, LentKind::Sealed),
    ];
    let socket = connect(&daemon);
    let said = |request: Asked, files: &[BorrowedFd<'_>]| match ask(&socket, &request, files) {
        Some((Reply::Refused { message, .. }, _)) => Err(message),
        Some((reply, _)) => Ok(reply),
        None => panic!("the session is over"),
    };
    said(Asked::Hello(HELLO), &[]).expect("welcome");
    for (why, file, bytes, kind) in wrong {
        let refused = said(Asked::Lend { bytes, kind }, &[file.as_fd()]).expect_err(why);
        assert!(refused.contains(why), "{why}: {refused}");
    }
    let lends = |kind, file: &File, bytes| said(Asked::Lend { bytes, kind }, &[file.as_fd()]);
    let mib = MIB as u64;
    assert_eq!(lends(LentKind::Sealed, &sealed, mib), Ok(Reply::Lent { segment: 1 }));
    // The same file once more is more memory: it is mapped twice.
    assert_eq!(lends(LentKind::Loose, &loose, mib), Ok(Reply::Lent { segment: 2 }));
    for segment in [0, 3, u32::MAX] {
        let refused = said(Asked::TakeBack { segment }, &[]).expect_err("not lent");
        assert!(refused.contains("is not lent"), "{refused}");
    }
    assert_eq!(said(Asked::TakeBack { segment: 1 }, &[]), Ok(Reply::Done));
    assert!(said(Asked::TakeBack { segment: 1 }, &[]).is_err(), "only once");
    // The lowest free number is used again.
    assert_eq!(lends(LentKind::Sealed, &sealed, mib), Ok(Reply::Lent { segment: 1 }));
    let region = |segment, access| Asked::ExportRegion {
        name: "inside".to_owned(),
        segment,
        offset: 0,
        length: 4096,
        access,
        audience: Default::default(),
    };
    let refused = said(region(2, Access::ALL), &[]).expect_err("no atomic words");
    assert!(refused.contains("atomic"), "{refused}");
    let Ok(Reply::Opened { handle, .. }) = said(region(2, Access::READ_WRITE), &[]) else {
        panic!("a region in loose memory is none with atomic words")
    };
    let refused = said(Asked::TakeBack { segment: 2 }, &[]).expect_err("a region is in it");
    assert!(refused.contains("a region lies in"), "{refused}");
    assert_eq!(said(Asked::CloseHandle { handle }, &[]), Ok(Reply::Done));
    assert_eq!(said(Asked::TakeBack { segment: 2 }, &[]), Ok(Reply::Done));
    let most = memfd(7 * MIB, SealFlags::SHRINK);
    assert_eq!(lends(LentKind::Sealed, &most, 7 << 20), Ok(Reply::Lent { segment: 2 }));
    let refused = lends(LentKind::Loose, &loose, mib).expect_err("no more");
    assert!(refused.contains("limits.client.lent = 8MiB"), "{refused}");
    // Another session of the user has what the user has left.
    let client = Client::connect(daemon.client_socket()).expect("it serves");
    let refused = client.lend_memfd(&most).expect_err("beyond the user's").to_string();
    assert!(refused.contains("limits.user.lent = 12MiB"), "{refused}");
    let report = daemon.json(&["clients"]);
    let lent = report["clients"].as_array().expect("rows").iter().map(|row| &row["lent_bytes"]);
    let mut lent: Vec<u64> = lent.map(|bytes| bytes.as_u64().expect("a number")).collect();
    lent.sort_unstable();
    assert_eq!(lent, [0, 8 << 20]);
    let limits = daemon.json(&["limits"]);
    assert_eq!(limits["users"][0]["lent_bytes"], 8 << 20);
    drop(socket);
    eventually("it is given back", || client.lend_memfd(&most).ok());
}

#[test]
fn buffers_of_lent_memory_never_overlap_and_outlive_what_they_are_of() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    let client = Client::connect(daemon.client_socket()).expect("it serves");
    let lent_bytes = || {
        let limits = daemon.json(&["limits"]);
        let rows = limits["limits"].as_array().expect("rows").clone();
        let row = rows.into_iter().find(|row| row["name"] == "client.lent").expect("a row");
        row["used"].as_u64().expect("a number")
    };
    let Own { lent, file } = lend(&client, Kind::Sealed, 3 * 4096);
    let taken =
        |offset, length| matches!(lent.buffer(offset, length), Err(PartError::Taken { .. }));
    let outside =
        |offset, length| matches!(lent.buffer(offset, length), Err(PartError::Outside(_)));
    let buffer = lent.buffer(100, 5000).expect("free");
    assert!(taken(0, 101) && taken(5099, 1) && taken(100, 5000) && taken(0, 3 * 4096));
    assert!(outside(0, 0) && outside(3 * 4096, 1) && outside(1, 3 * 4096));
    assert!(outside(usize::MAX, 1) && outside(1, usize::MAX));
    let neighbours = [lent.buffer(0, 100).expect("free"), lent.buffer(5100, 1).expect("free")];
    drop(lent);
    drop(neighbours);
    assert_eq!(lent_bytes(), 3 * 4096, "a buffer is left");
    let blocks = directory.path().join("blocks");
    fs::write(&blocks, pattern(MIB)).expect("written");
    let blocks = client.open_file(&blocks, OpenOptions::read()).expect("it is there");
    let mut queue = client.queue().expect("a queue");
    let (buffer, _) = queue.read(&blocks, 1, buffer).expect("it is lent");
    let mut seen = [0; 5000];
    file.expect("its file").read_exact_at(&mut seen, 100).expect("all there");
    assert!(seen == pattern(MIB)[1..5001]);
    drop(buffer);
    eventually("it is given back", || (lent_bytes() == 0).then_some(()));
    // The kind is what the memory is, and not what one would like.
    let loose = client.lend_memfd(shared(4096)).expect_err("it has no seals");
    assert!(matches!(loose, LendError::Memory(_)), "{loose}");
    let disk = File::open(directory.path().join("blocks")).expect("opens");
    assert!(matches!(client.lend_shared(&disk), Err(LendError::Memory(_))));
    let area = private_pages(4096);
    // SAFETY: the page is new, and nobody else uses it.
    let first = unsafe { client.lend_private(area, 4096) }.expect("lent");
    // SAFETY: as above; it is refused, because it is lent.
    let again = unsafe { client.lend_private(area, 4096) }.expect_err("it is lent");
    assert!(again.to_string().contains("lent already"), "{again}");
    // SAFETY: nothing is done with memory that is no whole page.
    let odd = unsafe { client.lend_private(area.wrapping_add(8), 4096) }.expect_err("odd");
    assert!(matches!(odd, LendError::Area(_)), "{odd}");
    assert_eq!(first.as_ptr(), area, "the pointer stays good");
    // Another client's buffers are foreign.
    let other = Client::connect(daemon.client_socket()).expect("it serves");
    let read =
        Request::read(&blocks, 0, lend(&other, Kind::Loose, 4096).lent.buffer(0, 1).expect("free"));
    let refused = queue.submit(read).expect_err("another client's");
    assert_eq!(refused.fault, SubmitFault::Foreign);
}

/// What a request on memory that is being cut may end with.
fn is_own_loss(error: &RequestError) -> bool {
    matches!(error.cause, Cause::Status(Status::BadBuffer | Status::Corrupt))
}

/// The rounds of cutting: 10 000, unless somebody wants more.
fn rounds() -> usize {
    std::env::var("PIPED_LENT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000)
}

#[test]
fn cut_memory_costs_its_own_clients_requests_and_nobody_else_anything() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    // A lane with checksums: the daemon reads every byte that it sends and gets.
    let sums = "[peers.beta]\nchecksum = \"payload\"\n";
    let mut pair = Pair::start(&programs, directory.path());
    pair.settings[0] = pair.settings[0].replace("[peers.beta]\n", sums);
    pair.alpha.process.signal(Signal::KILL);
    pair.alpha.restart(&pair.settings[0].clone());
    pair.alpha.await_lanes();
    let neighbour = Neighbour::start(&pair, directory.path());
    neighbour.await_served();
    let lanes_lost = pair.alpha.number("lanes_lost") + pair.beta.number("lanes_lost");
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let work = Work::new(&pair, &client, directory.path());
    let seed = 0x1e47;
    let mut random = Random::new(seed);
    let mut below = |limit: usize| random.below(limit as u64) as usize;
    let (mut ended, mut lost) = (0, 0);
    const LENGTH: usize = 256 << 10;
    let mut round = 0;
    while round < rounds() {
        let file = shared(LENGTH);
        let lent = client.lend_shared(&file).expect("lent");
        // On one piece of memory, until it is torn and of no more use.
        let mut torn = false;
        for _ in 0..8 {
            round += 1;
            let mut asked = Vec::new();
            for slot in 0..4 {
                let length = 1 + below(LENGTH / 4);
                let start = slot * (LENGTH / 4) + below(LENGTH / 4 - length + 1);
                let buffer = lent.buffer(start, length).expect("four places");
                asked.push(work.submit(&mut queue, below(8), buffer));
            }
            queue.flush();
            if below(3) > 0 {
                file.set_len(below(LENGTH) as u64).expect("cut");
                torn = true;
            }
            if below(2) == 0 {
                file.set_len(LENGTH as u64).expect("long again");
            }
            for pending in asked {
                match pending.wait(&mut queue) {
                    Ok(_) => ended += 1,
                    Err(error) if torn && is_own_loss(&error) => lost += 1,
                    Err(error) => panic!("seed {seed:#x}, round {round}, torn {torn}: {error}"),
                }
            }
            if torn && below(2) == 0 {
                break;
            }
            file.set_len(LENGTH as u64).expect("long again");
        }
    }
    neighbour.await_served();
    let served = neighbour.stop();
    assert!(served.requests > 0 && served.wrong == 0, "{served:?}");
    assert!(ended > 0 && lost > 0, "{ended} ended, {lost} lost: the memory was cut in time");
    println!("{ended} requests ended, {lost} lost their memory; neighbour: {served:?}");
    for daemon in [&mut pair.alpha, &mut pair.beta] {
        assert_eq!(daemon.process.0.try_wait().expect("ours"), None, "no signal: {}", daemon.log());
        daemon.await_rest();
    }
    let lost = pair.alpha.number("lanes_lost") + pair.beta.number("lanes_lost");
    assert_eq!(lost, lanes_lost, "no connection was lost");
    assert_eq!(pair.alpha.number("sessions"), 2, "the session goes on, beside a region's owner's");
    // Memory that is whole is served by the same session.
    let own = lend(&client, Kind::Loose, LENGTH);
    let (buffer, _) =
        queue.read(&work.files[1], 0, own.lent.buffer(0, LENGTH).expect("free")).expect("read");
    drop(buffer);
    assert!(own.see(0, LENGTH) == pattern(BLOCKS_BYTES)[..LENGTH]);
}

/// Things that requests on lent memory are of.
struct Work {
    /// Here and there; the last two are written.
    files: [piped_client::Handle; 4],
    /// Here and there.
    regions: [piped_client::Handle; 2],
    _owners: Vec<(piped_client::RegionExport, Client)>,
}

impl Work {
    fn new(pair: &Pair, client: &Client, directory: &Path) -> Self {
        let local = directory.join("lent.local");
        fs::write(&local, pattern(BLOCKS_BYTES)).expect("written");
        let written = directory.join("lent.written");
        fs::write(&written, pattern(BLOCKS_BYTES)).expect("written");
        let both = OpenOptions::read_write;
        let remote = |name, options| client.open_export(Some("beta"), "data", name, options);
        let files = [
            client.open_file(&local, OpenOptions::read()).expect("it is there"),
            remote("blocks", OpenOptions::read()).expect("it is there"),
            client.open_file(&written, both()).expect("it is there"),
            remote("lent.remote", both().create(true)).expect("made"),
        ];
        let mut owners = Vec::new();
        let sockets = [pair.alpha.client_socket(), pair.beta.client_socket()];
        let regions = [(sockets[0].clone(), None), (sockets[1].clone(), Some("beta"))];
        let regions = regions.map(|(socket, peer)| {
            let owner = Client::connect(socket).expect("it serves");
            let memory = owner.allocate(MIB).expect("memory");
            let export = owner.export_region("of-lent", memory, Access::READ_WRITE);
            owners.push((export.expect("offered"), owner));
            client.open_region(peer, "of-lent", Access::READ_WRITE).expect("offered")
        });
        Self { files, regions, _owners: owners }
    }

    fn submit(
        &self,
        queue: &mut Queue,
        which: usize,
        buffer: Buffer,
    ) -> piped_client::Pending<Buffer> {
        let request = match which {
            0 | 1 => Request::read(&self.files[which], 8192 + which as u64, buffer),
            2 | 3 => Request::write(&self.files[which], 4096, buffer),
            4 | 5 => Request::read(&self.regions[which - 4], 0, buffer),
            _ => Request::write(&self.regions[which - 6], 0, buffer),
        };
        queue.submit(request.deadline(Duration::from_secs(60))).expect("room")
    }
}

#[test]
fn a_region_in_memory_that_was_cut_is_gone_and_not_zeros() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    let owner = Client::connect(pair.beta.client_socket()).expect("it serves");
    let own = lend(&owner, Kind::Loose, MIB);
    let bytes = pattern(MIB);
    let export = owner.export_region("cut", own.with(0, &bytes), Access::READ).expect("offered");
    let readers = [(pair.beta.client_socket(), None), (pair.alpha.client_socket(), Some("beta"))];
    let mut readers = readers.map(|(socket, peer)| {
        let client = Client::connect(socket).expect("it serves");
        let handle = client.open_region(peer, "cut", Access::READ).expect("offered");
        (client.queue().expect("a queue"), handle, client.allocate(MIB).ok())
    });
    for (queue, handle, buffer) in &mut readers {
        let (got, _) = queue.read(handle, 0, buffer.take().expect("its own")).expect("got");
        assert!(got.as_slice() == bytes);
        *buffer = Some(got);
    }
    own.file.as_ref().expect("its file").set_len(4096).expect("cut");
    for (queue, handle, buffer) in &mut readers {
        let mut asked = 0;
        let mut buffer = buffer.take();
        eventually("the region is gone", || {
            asked += 1;
            match queue.read(handle, 0, buffer.take().expect("its own")) {
                Err(error) if error.status() == Some(Status::Gone) => Some(()),
                // The exporter's daemon found it while it sent, and tells with the next answer.
                Ok((got, _)) => {
                    buffer = Some(got);
                    None
                }
                Err(error) if error.status() == Some(Status::Corrupt) => {
                    buffer = error.into_buffer();
                    None
                }
                Err(error) => panic!("{error}"),
            }
        });
        assert!(asked <= 2, "told with the second answer at the latest");
    }
    drop(export);
    assert_eq!(pair.beta.number("sessions"), 2, "its owner's session goes on");
}

#[test]
fn lent_memory_is_lent_to_the_next_daemon_and_does_not_move() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    let blocks = directory.path().join("blocks");
    fs::write(&blocks, pattern(MIB)).expect("written");
    let builder = ClientBuilder::new().reconnect(Duration::from_secs(30));
    let client = builder.connect(daemon.client_socket()).expect("it serves");
    let file = client.open_file(&blocks, OpenOptions::read_write()).expect("it is there");
    let mut queue = client.queue().expect("a queue");
    let owns = KINDS.map(|kind| lend(&client, kind, 64 << 10));
    let held = owns.each_ref().map(|own| own.with(0, b"kept by the program"));
    daemon.process.signal(Signal::KILL);
    daemon.restart("");
    client.reconnect().expect("it is there");
    for (own, buffer) in owns.iter().zip(held) {
        let place = buffer.as_ptr();
        assert_eq!(place, own.lent.as_ptr());
        let (buffer, _) = queue.write(&file, 100, buffer).expect("lent again");
        assert_eq!(buffer.as_ptr(), place, "it has not moved");
        drop(buffer);
        let buffer = own.lent.buffer(4096, 4096).expect("free");
        drop(queue.read(&file, 8192, buffer).expect("read"));
        assert!(own.see(4096, 4096) == pattern(MIB)[8192..12_288]);
    }
    assert_eq!(&fs::read(&blocks).expect("there")[100..119], b"kept by the program");
    // A daemon that allows less keeps the session, and says so with the next request.
    daemon.process.signal(Signal::KILL);
    daemon.restart("[limits.client]\nlent = \"64KiB\"\n");
    client.reconnect().expect("it is there");
    let refused: Vec<_> = owns
        .iter()
        .filter_map(|own| queue.read(&file, 0, own.lent.buffer(0, 4096).expect("free")).err())
        .map(|error| error.cause)
        .collect();
    assert_eq!(refused, [Cause::NotSubmitted(SubmitFault::NotLent); 2]);
}

/// A program that shares a block of memory in the way of Python's standard library, says its name,
/// and says the sum of its bytes when it is asked.
const PYTHON: &str = r#"
import sys
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=1000003)
block.buf[:5] = b"hello"
print(block.name, flush=True)
for line in sys.stdin:
    if line.strip() == "sum":
        print(sum(block.buf[:1000003]), flush=True)
    else:
        break
block.close()
block.unlink()
"#;

#[test]
fn a_block_of_pythons_shared_memory_is_payload() {
    let Some(programs) = Programs::find() else { return };
    let mut python = Command::new("python3");
    python.args(["-c", PYTHON]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut python) = python.spawn() else {
        eprintln!("skipped: there is no python3");
        return;
    };
    let (mut ask, answers) = (python.stdin.take().expect("piped"), python.stdout.take());
    let mut answers = BufReader::new(answers.expect("piped")).lines();
    let Some(Ok(name)) = answers.next() else {
        eprintln!("skipped: this python3 has no multiprocessing.shared_memory");
        let _ = python.wait();
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    let path = Path::new("/dev/shm").join(&name);
    let memory = File::options().read(true).write(true).open(&path).expect("it is there");
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let lent = client.lend_shared(&memory).expect("lent");
    assert!(lent.len() >= 1_000_003, "as long as was asked for, or whole pages");
    let mut hello = [0; 5];
    lent.buffer(0, 5).expect("free").read_at(0, &mut hello).expect("inside");
    assert_eq!(&hello, b"hello", "what is in it is what the other one wrote");
    let remote = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    let remote = remote.expect("it is there");
    let mut queue = client.queue().expect("a queue");
    let buffer = lent.buffer(0, 1_000_003).expect("free");
    let (buffer, _) = queue.read(&remote, 11, buffer).expect("read");
    let sum: u64 = pattern(BLOCKS_BYTES)[11..1_000_014].iter().map(|&byte| u64::from(byte)).sum();
    writeln!(ask, "sum").expect("it listens");
    assert_eq!(answers.next().expect("an answer").expect("text"), sum.to_string());
    // Unlinked by its maker, it is still there for who has it.
    writeln!(ask, "end").expect("it listens");
    assert!(python.wait().expect("ours").success());
    assert!(!path.exists());
    let (buffer, _) = queue.read(&remote, 12, buffer).expect("read");
    let mut first = [0];
    buffer.read_at(0, &mut first).expect("inside");
    assert_eq!(first[0], pattern(13)[12]);
    // It is cut now; the session of who lent it learns of that, and nobody dies.
    memory.set_len(4096).expect("cut");
    let error = queue.read(&remote, 12, buffer).expect_err("it is cut");
    assert!(is_own_loss(&error), "{error}");
    let buffer = error.into_buffer().expect("it is here");
    assert!(buffer.read_at(8192, &mut first).is_err(), "a copy is an error, and no signal");
    assert!(client.is_connected());
    assert!(client.lend_shared(&memory).is_ok(), "as long as it is now");
}
