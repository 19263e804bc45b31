//! A client whose queues all shards of a daemon serve, with real threads: whatever queue a request
//! comes by, it does what it says, also where another shard has what it is for; and nothing of the
//! client is left on any shard when it goes.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use piped_client::{
    Access, Buffer, Client, ClientBuilder, Handle, OpenOptions, Piece, Queue, Request, Status, Tag,
};
use rustix::process::Signal;
use system_tests::process::{
    BLOCKS_BYTES, Daemon, Programs, Running, eventually, free_address, itself, pattern,
};

const LATE: Duration = Duration::from_secs(300);
const QUEUES: usize = 4;
const BLOCK: usize = 64 << 10;

/// Two daemons of two shards each, both of which have an export; alpha knows beta.
fn nodes(programs: &Programs, directory: &Path) -> [Daemon; 2] {
    let address = free_address();
    let start = |name: &str, more: &str| {
        let root = directory.join(format!("{name}-data"));
        std::fs::create_dir(&root).expect("made");
        std::fs::write(root.join("blocks"), pattern(BLOCKS_BYTES)).expect("written");
        let export =
            format!("{more}\n[exports.data]\npath = \"{}\"\nwrite = true\n", root.display());
        let mut command = programs.piped();
        command.args(["--set", "shards.count=2", "--set", "limits.global.staging=\"32MiB\""]);
        Daemon::start_by(command, programs, directory, name, &export)
    };
    let beta = start("beta", &format!("[listen]\naddress = \"{address}\"\n"));
    let alpha = start("alpha", &format!("[peers.beta]\naddress = \"{address}\"\n"));
    [alpha, beta]
}

fn connect(daemon: &Daemon) -> Client {
    let builder = ClientBuilder::new().arena_bytes(16 << 20).spread(true);
    builder.connect(daemon.client_socket()).expect("it serves")
}

fn queues(client: &Client) -> Vec<Queue> {
    (0..QUEUES).map(|_| client.queue().expect("a queue")).collect()
}

fn sessions(daemon: &Daemon) -> [u64; 2] {
    let status = daemon.status();
    [0, 1].map(|shard| status["shards"][shard]["sessions"].as_u64().expect("a number"))
}

fn filled(client: &Client, length: usize, byte: u8) -> Buffer {
    let mut buffer = client.allocate(length).expect("memory");
    buffer.as_mut_slice().fill(byte);
    buffer
}

fn write(client: &Client, queue: &mut Queue, to: &Handle, at: u64, byte: u8) {
    queue.run(Request::write(to, at, filled(client, BLOCK, byte)).deadline(LATE)).expect("written");
}

fn reads_as(client: &Client, queue: &mut Queue, from: &Handle, at: u64, byte: u8) {
    let buffer = filled(client, BLOCK, !byte);
    let done = queue.run(Request::read(from, at, buffer).deadline(LATE)).expect("read");
    assert_eq!(done.bytes as usize, BLOCK);
    assert!(done.payload.as_slice().iter().all(|&it| it == byte), "at {at}");
}

fn status_of(error: &piped_client::RequestError) -> Option<Status> {
    error.status()
}

#[test]
fn what_one_queue_writes_all_others_read_here_and_at_a_peer() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let [alpha, beta] = nodes(&programs, directory.path());
    alpha.await_lanes();
    let client = connect(&alpha);
    let mut queues = queues(&client);
    assert_eq!(sessions(&alpha), [1, 1], "one client, on both shards");
    let wanted = OpenOptions::read_write();
    let near = client.open_export(None, "data", "blocks", wanted).expect("it is here");
    let far = client.open_export(Some("beta"), "data", "blocks", wanted);
    let far = far.expect("it is there");
    let local = directory.path().join("passed");
    std::fs::write(&local, vec![0; 1 << 20]).expect("written");
    let passed = client.open_file(&local, wanted).expect("it is here");
    let owner = connect(&beta);
    let memory = owner.allocate(1 << 20).expect("memory");
    let _board = owner.export_region("board", memory, Access::ALL).expect("a new name");
    let region = client.open_region(Some("beta"), "board", Access::ALL).expect("it is there");
    let own = client.allocate(1 << 20).expect("memory");
    let own = client.export_region("own", own, Access::ALL).expect("a new name");
    for (number, handle) in [&near, &far, &passed, &region, own.handle()].into_iter().enumerate() {
        for writer in 0..QUEUES {
            let byte = (16 * number + writer) as u8 + 1;
            write(&client, &mut queues[writer], handle, BLOCK as u64, byte);
            for reader in &mut queues {
                reads_as(&client, reader, handle, BLOCK as u64, byte);
            }
            // What one queue wrote, a sync by another covers; a flush is of the queue's own.
            let other = &mut queues[(writer + 1) % QUEUES];
            other.run(Request::sync(handle).deadline(LATE)).expect("it is stable");
            other.run(Request::flush(handle).deadline(LATE)).expect("all before it are over");
        }
        for queue in &mut queues {
            let table = client.pieces(&[
                Piece::new(BLOCK as u64, 0, 4096),
                Piece::new(2 * BLOCK as u64 - 4096, 4096, 4096),
            ]);
            let table = table.expect("a sound table");
            let both = Request::read_pieces(handle, &table, filled(&client, 8192, 0));
            let done = queue.run(both.deadline(LATE)).expect("read");
            let byte = (16 * number + QUEUES - 1) as u8 + 1;
            assert!(done.payload.as_slice().iter().all(|&it| it == byte), "handle {number}");
        }
    }
    // Copies, from wherever to wherever, by each queue.
    let handles = [&near, &far, &passed, &region, own.handle()];
    let mut byte = 100;
    for from in handles {
        for to in handles.into_iter().filter(|to| to.number() != from.number()) {
            let queue = &mut queues[usize::from(byte) % QUEUES];
            write(&client, queue, from, 0, byte);
            let copy = Request::copy(from, 0, to, 4 * BLOCK as u64, BLOCK as u64);
            queue.run(copy.deadline(LATE)).expect("copied");
            reads_as(&client, queue, to, 4 * BLOCK as u64, byte);
            byte += 1;
        }
    }
    // Words are one for all.
    thread::scope(|scope| {
        for queue in &mut queues {
            let (region, own) = (&region, &own);
            scope.spawn(move || {
                for _ in 0..500 {
                    for board in [region, own.handle()] {
                        queue.run(Request::fetch_add(board, 8, 1).deadline(LATE)).expect("added");
                    }
                }
            });
        }
    });
    for board in [&region, own.handle()] {
        let zero = Request::compare_swap(board, 8, u64::MAX, 0);
        queues[3].run(zero.deadline(LATE)).expect("looked at");
    }
    let use_of = alpha.json(&["clients"]);
    let report = &use_of["clients"][0];
    assert_eq!(report["queues"], QUEUES as u64, "{use_of}");
    assert_eq!(use_of["clients"].as_array().map(Vec::len), Some(1), "{use_of}");
    assert!(report["completed"].as_u64() > Some(4000), "all shards count: {use_of}");
    drop((near, far, passed, region, own, queues, client));
    eventually("nothing is left", || (sessions(&alpha) == [0, 0]).then_some(()));
    alpha.await_rest();
}

#[test]
fn messages_and_notifications_come_to_whichever_queue_asks() {
    const COUNT: u64 = 200;
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let [alpha, beta] = nodes(&programs, directory.path());
    alpha.await_lanes();
    let [near, far] = [connect(&alpha), connect(&beta)];
    let mail = far.offer_channel("mail").expect("a new name");
    let home = near.offer_channel("home").expect("a new name");
    let to_mail = near.open_channel(Some("beta"), "mail").expect("it is there");
    let to_home = near.open_channel(None, "home").expect("it is here");
    let board = far.allocate(1 << 16).expect("memory");
    let board = far.export_region("board", board, Access::ALL).expect("a new name");
    let region = near.open_region(Some("beta"), "board", Access::ALL).expect("it is there");
    let [mut senders, mut receivers] = [queues(&near), queues(&far)];
    thread::scope(|scope| {
        let (near, far, mail, to_mail) = (&near, &far, &mail, &to_mail);
        for (tag, queue) in (0..).zip(&mut senders) {
            scope.spawn(move || {
                for number in 0..COUNT {
                    let length = if number % 7 == 0 { 300 << 10 } else { 512 };
                    let mut buffer = filled(near, length, tag as u8);
                    buffer.as_mut_slice()[..8].copy_from_slice(&number.to_le_bytes());
                    let send = Request::send(to_mail, tag, buffer).deadline(LATE);
                    queue.run(send).expect("taken in");
                }
            });
        }
        for (tag, queue) in (0..).zip(&mut receivers) {
            scope.spawn(move || {
                let mut buffer = far.allocate(300 << 10).expect("memory");
                for number in 0..COUNT {
                    let receive = Request::receive(mail, Tag::Is(tag), buffer).deadline(LATE);
                    let done = queue.run(receive).expect("received");
                    let bytes = &done.payload.as_slice()[..done.bytes as usize];
                    assert_eq!(bytes[..8], number.to_le_bytes(), "in the queue's order");
                    assert!(bytes[8..].iter().all(|&it| it == tag as u8));
                    buffer = done.payload;
                }
            });
        }
    });
    for (number, queue) in senders.iter_mut().enumerate() {
        // Of this node, and to the client itself.
        let send = Request::send(&to_home, 7, filled(&near, 100, number as u8)).deadline(LATE);
        queue.run(send).expect("taken in");
        let put = Request::write(&region, 0, filled(&near, 64, number as u8)).then_notify(3);
        queue.run(put.deadline(LATE)).expect("put");
    }
    for (number, queue) in (0..).zip(&mut senders) {
        let buffer = near.allocate(100).expect("memory");
        let done = queue.run(Request::receive(&home, Tag::Any, buffer).deadline(LATE));
        assert_eq!(done.expect("received").payload.as_slice()[0], number as u8);
    }
    for queue in &mut receivers {
        let wait = Request::wait(board.handle(), 3, 1).deadline(LATE);
        queue.run(wait).expect("notified");
    }
    for queue in &mut receivers {
        let none = queue.run(Request::wait(board.handle(), 3, 1).no_wait()).expect_err("no more");
        assert_eq!(status_of(&none), Some(Status::WouldBlock));
        let buffer = far.allocate(8).expect("memory");
        let none = queue.run(Request::receive(&mail, Tag::Any, buffer).no_wait());
        assert_eq!(status_of(&none.expect_err("no more")), Some(Status::WouldBlock));
    }
    // A receive that nobody answers is given up by its own queue, and its buffer comes back.
    for queue in &mut receivers {
        let buffer = far.allocate(8).expect("memory");
        let pending = queue.submit(Request::receive(&mail, Tag::Any, buffer).deadline(LATE));
        let pending = pending.expect("room");
        assert!(queue.cancel(&pending), "it is under way");
        let ended = pending.wait(queue).expect_err("nobody sends");
        assert_eq!(status_of(&ended), Some(Status::Cancelled));
        let buffer = far.allocate(8).expect("memory");
        let short = Request::receive(&mail, Tag::Any, buffer).deadline(Duration::from_millis(20));
        let late = queue.run(short).expect_err("nobody sends");
        assert_eq!(status_of(&late), Some(Status::DeadlineExceeded));
    }
    // What waits when its client goes keeps nothing.
    for queue in &mut receivers {
        let buffer = far.allocate(8).expect("memory");
        let waits = queue.submit(Request::receive(&mail, Tag::Any, buffer).deadline(LATE));
        let _ = queue.detach(waits.expect("room"));
    }
    drop((receivers, mail, board, far));
    eventually("nothing is left", || (sessions(&beta) == [0, 0]).then_some(()));
    beta.await_rest();
}

#[test]
fn what_ends_ends_for_all_queues() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let [alpha, _beta] = nodes(&programs, directory.path());
    alpha.await_lanes();
    let client = connect(&alpha);
    let mut queues = queues(&client);
    let open = |peer| client.open_export(peer, "data", "blocks", OpenOptions::read());
    // By an operator, handle by handle.
    for peer in [None, Some("beta")] {
        let file = open(peer).expect("it is there");
        let listed = alpha.json(&["handles"]);
        let number = listed["handles"][0]["handle"].as_u64().expect("a number");
        let ended = alpha.pipectl(["handle", "end", &number.to_string()]).output();
        assert!(ended.expect("pipectl starts").status.success());
        for queue in &mut queues {
            let ended = || {
                let read = Request::read(&file, 0, client.allocate(4096).expect("memory"));
                queue.run(read.deadline(LATE)).err()
            };
            let ended = eventually("it ends", ended);
            assert_eq!(status_of(&ended), Some(Status::Gone), "at {peer:?}");
        }
    }
    // Memory that is taken back is so on all shards, and its number is for other memory.
    for round in 0..3_u8 {
        let lent = shared(&client, round);
        for queue in &mut queues {
            let buffer = lent.buffer(0, 4096).expect("a part");
            let file = open(None).expect("it is there");
            let done = queue.run(Request::read(&file, 0, buffer).deadline(LATE)).expect("read");
            let mut got = [0; 4096];
            done.payload.read_at(0, &mut got).expect("so long");
            assert_eq!(got[..], pattern(BLOCKS_BYTES)[..4096], "round {round}");
        }
    }
    // A client that dies in the middle of everything.
    let [near, far] = [None, Some("beta")].map(|peer| open(peer).expect("it is there"));
    for (number, queue) in queues.iter_mut().enumerate() {
        for file in [&near, &far, &near, &far] {
            let read = Request::read(file, 0, client.allocate(1 << 20).expect("memory"));
            let pending = queue.submit(read.deadline(LATE)).expect("room");
            let _ = queue.detach(pending);
        }
        assert!(queue.underway() > 0, "queue {number}");
    }
    drop((queues, near, far, client));
    eventually("nothing is left", || (sessions(&alpha) == [0, 0]).then_some(()));
    alpha.await_rest();
    // Who does not ask for it is on one shard.
    let plain = Client::connect(alpha.client_socket()).expect("it serves");
    let _queues = [plain.queue(), plain.queue()].map(|queue| queue.expect("a queue"));
    let mut on = sessions(&alpha);
    on.sort_unstable();
    assert_eq!(on, [0, 1]);
}

/// The environment variable that makes a client of this program: the socket of its daemon.
const VICTIM: &str = "PIPED_TEST_SPREAD_VICTIM";

/// A program of its own: all its queues ask for all that a shard may have to ask another one for,
/// until it is killed.
#[test]
#[ignore = "a part of `a_killed_client_leaves_nothing_on_any_shard`"]
fn a_client_to_be_killed() {
    let Ok(socket) = std::env::var(VICTIM) else { return };
    let builder = ClientBuilder::new().arena_bytes(32 << 20).spread(true);
    let client = builder.connect(&socket).expect("it serves");
    let wanted = OpenOptions::read_write();
    let open = |peer| client.open_export(peer, "data", "blocks", wanted).expect("it is there");
    let (near, far) = (open(None), open(Some("beta")));
    let own = client.allocate(1 << 20).expect("memory");
    let own = client.export_region("own", own, Access::ALL).expect("a new name");
    let mail = client.offer_channel("mail").expect("a new name");
    let to_mail = client.open_channel(None, "mail").expect("it is here");
    thread::scope(|scope| {
        for queue in queues(&client) {
            let (client, near, far, own) = (&client, &near, &far, own.handle());
            let (mail, to_mail) = (&mail, &to_mail);
            scope.spawn(move || work_for_ever(client, queue, [near, far, own], [mail, to_mail]));
        }
    });
}

fn work_for_ever(
    client: &Client,
    mut queue: Queue,
    files: [&Handle; 3],
    [mail, to_mail]: [&Handle; 2],
) {
    // Receives that wait, and one that nobody answers.
    for tag in [1, 1, 2] {
        let buffer = client.allocate(BLOCK).expect("memory");
        let receive = Request::receive(mail, Tag::Is(tag), buffer).deadline(LATE);
        let pending = queue.submit(receive).expect("room");
        let _ = queue.detach(pending);
    }
    loop {
        let mut pending = Vec::new();
        for file in files {
            let buffer = |byte| filled(client, BLOCK, byte);
            let [write, read] = [buffer(1), buffer(2)];
            pending.push(queue.submit(Request::write(file, 0, write).deadline(LATE)));
            pending.push(queue.submit(Request::read(file, BLOCK as u64, read).deadline(LATE)));
        }
        for pending in pending {
            let _ = pending.expect("room").wait(&mut queue);
        }
        let copy = Request::copy(files[1], 0, files[0], 4 * BLOCK as u64, BLOCK as u64);
        let _ = queue.run(copy.deadline(LATE));
        let _ = queue.run(Request::sync(files[1]).deadline(LATE));
        let _ = queue.run(Request::fetch_add(files[2], 8, 1).deadline(LATE));
        let send = Request::send(to_mail, 1, filled(client, 512, 3));
        let _ = queue.run(send.no_wait());
    }
}

/// Whatever it had under way, on which shard ever, is over: also what one shard asked another one
/// for and lent it memory for. The peer does not answer when it dies.
#[test]
fn a_killed_client_leaves_nothing_on_any_shard() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let [alpha, beta] = nodes(&programs, directory.path());
    alpha.await_lanes();
    let survivor = connect(&alpha);
    let mut others = queues(&survivor);
    let file = survivor.open_export(None, "data", "blocks", OpenOptions::read()).expect("here");
    // What lanes have at the kernel stays, and the other client's file.
    let stays = ["ops", "handles"].map(|what| (what, alpha.number(what)));
    for round in 0..4 {
        let before = alpha.number("completed");
        let mut victim = itself("a_client_to_be_killed");
        victim.stdout(Stdio::null()).stderr(Stdio::inherit());
        let mut victim =
            Running(victim.env(VICTIM, alpha.client_socket()).spawn().expect("starts"));
        eventually("it works", || (alpha.number("completed") > before + 500).then_some(()));
        if round % 2 == 1 {
            // All queues come to a request that waits for it.
            beta.process.freeze();
            let mut ended = Vec::new();
            eventually("its requests stand still", || {
                ended.push(alpha.number("completed"));
                ended.iter().rev().take_while(|&it| Some(it) == ended.last()).nth(4).map(drop)
            });
        }
        victim.signal(Signal::KILL);
        victim.exit();
        // Shards serve others meanwhile.
        for queue in &mut others {
            let buffer = survivor.allocate(4096).expect("memory");
            let done = queue.run(Request::read(&file, 0, buffer).deadline(LATE)).expect("served");
            assert_eq!(done.payload.as_slice().len(), 4096);
        }
        // A write that the kernel has half sent keeps its memory until the peer takes the rest.
        beta.process.signal(Signal::CONT);
        eventually("only the other client is left", || {
            let none = ["transfers", "lent"].iter().all(|what| alpha.number(what) == 0);
            let stays = stays.iter().all(|(what, number)| alpha.number(what) == *number);
            (none && stays && alpha.staged() == 0 && sessions(&alpha) == [1, 1]).then_some(())
        });
    }
    drop((others, file, survivor));
    eventually("nothing is left", || (sessions(&alpha) == [0, 0]).then_some(()));
    alpha.await_rest();
    beta.await_rest();
}

/// Memory of the test's own that is lent to the daemon.
fn shared(client: &Client, round: u8) -> piped_client::Lent {
    let file = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
    file.set_len(1 << (16 + round)).expect("it is that long");
    client.lend_shared(&file).expect("it is lent")
}
