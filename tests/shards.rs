//! Clients of one daemon that different shards serve, with real threads: messages, notifications and
//! atomics between them and from another node, and what becomes of them when somebody goes.
#![forbid(unsafe_code)]

use std::thread;
use std::time::Duration;

use piped_client::{
    Access, Client, ClientBuilder, Handle, OpenOptions, Queue, Request, Status, Tag,
};
use system_tests::keys::Key;
use system_tests::process::{Daemon, Programs, eventually, free_address, words};

const LATE: Duration = Duration::from_secs(300);
/// Longer than what is sent without being announced, and copied in more than one piece.
const LONG: usize = 700 << 10;

/// A daemon of two shards.
fn daemon(programs: &Programs, directory: &std::path::Path, name: &str, more: &str) -> Daemon {
    let mut command = programs.piped();
    command.args(["--set", "shards.count=2", "--set", "limits.global.staging=\"32MiB\""]);
    Daemon::start_by(command, programs, directory, name, more)
}

fn connect(daemon: &Daemon) -> Client {
    let builder = ClientBuilder::new().arena_bytes(16 << 20);
    builder.connect(daemon.client_socket()).expect("it serves")
}

/// Two clients of two shards: each goes where there are fewer.
fn both(daemon: &Daemon) -> [Client; 2] {
    let clients = [connect(daemon), connect(daemon)];
    let status = daemon.status();
    for shard in [0, 1] {
        assert_eq!(status["shards"][shard]["sessions"], 1, "{status}");
    }
    clients
}

fn length_of(number: u64) -> usize {
    match number % 5 {
        0 => LONG,
        1 => 8,
        2 => 3000,
        3 => 90_000,
        _ => 1024,
    }
}

fn send(client: &Client, queue: &mut Queue, to: &Handle, from: u64, count: u64) {
    for number in 0..count {
        let mut buffer = client.allocate(length_of(number)).expect("memory");
        buffer.as_mut_slice().fill((from * 50 + number) as u8);
        buffer.as_mut_slice()[..8].copy_from_slice(&number.to_le_bytes());
        queue.run(Request::send(to, from, buffer).deadline(LATE)).expect("taken in");
    }
}

/// Receives that many of each sender, in their orders.
fn receive(client: &Client, queue: &mut Queue, mail: &Handle, senders: &[u64], count: u64) {
    let mut next = [0_u64; 8];
    let mut buffer = client.allocate(LONG).expect("memory");
    for _ in 0..count * senders.len() as u64 {
        let done = queue.run(Request::receive(mail, Tag::Any, buffer).deadline(LATE));
        let done = done.expect("received");
        let (from, bytes) = (done.value, done.bytes as usize);
        let number = u64::from_le_bytes(done.payload.as_slice()[..8].try_into().expect("8 bytes"));
        assert_eq!((number, bytes), (next[from as usize], length_of(number)), "of sender {from}");
        let rest = &done.payload.as_slice()[8..bytes];
        assert!(rest.iter().all(|&byte| byte == (from * 50 + number) as u8), "{number} of {from}");
        next[from as usize] += 1;
        buffer = done.payload;
    }
    assert!(senders.iter().all(|&from| next[from as usize] == count));
    let none = queue.run(Request::receive(mail, Tag::Any, buffer).no_wait());
    assert_eq!(none.expect_err("no more").status(), Some(Status::WouldBlock));
}

#[test]
fn clients_of_two_shards_and_of_another_node_send_each_other_messages_in_order() {
    const COUNT: u64 = 60;
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let address = free_address();
    let listen = format!("[listen]\naddress = \"{address}\"\n");
    let beta = daemon(&programs, directory.path(), "beta", &listen);
    let peer = format!("[peers.beta]\naddress = \"{address}\"\n");
    let alpha = daemon(&programs, directory.path(), "alpha", &peer);
    let clients = both(&beta);
    let far = [connect(&alpha), connect(&alpha)];
    let mails = [0, 1]
        .map(|it: usize| clients[it].offer_channel(&format!("mail-{it}")).expect("a new name"));
    thread::scope(|scope| {
        for it in [0, 1] {
            let (client, mail, other) = (&clients[it], &mails[it], 1 - it);
            scope.spawn(move || {
                let mut queue = client.queue().expect("a queue");
                receive(client, &mut queue, mail, &[other as u64, 2, 3], COUNT);
            });
            scope.spawn(move || {
                let to = client.open_channel(None, &format!("mail-{other}")).expect("it is here");
                send(client, &mut client.queue().expect("a queue"), &to, it as u64, COUNT);
            });
            let client = &far[it];
            scope.spawn(move || {
                let mut queue = client.queue().expect("a queue");
                let from = 2 + it as u64;
                let opened = [0, 1].map(|to| {
                    let name = format!("mail-{to}");
                    eventually("it opens", || client.open_channel(Some("beta"), &name).ok())
                });
                for to in &opened {
                    send(client, &mut queue, to, from, COUNT);
                }
            });
        }
    });
    // Nobody receives: who does not want to wait is told, and who does is told when that is final.
    let [first, second] = clients;
    let to = second.open_channel(None, "mail-0").expect("it is here");
    let mut queue = second.queue().expect("a queue");
    let buffer = second.allocate(LONG).expect("memory");
    let refused = queue.run(Request::send(&to, 0, buffer).no_wait()).expect_err("nobody asks");
    assert_eq!(refused.status(), Some(Status::WouldBlock));
    let buffer = second.allocate(LONG).expect("memory");
    let waits = queue.submit(Request::send(&to, 0, buffer).deadline(LATE)).expect("room");
    drop((mails, first));
    let gone = waits.wait(&mut queue).expect_err("nobody receives any more");
    assert_eq!(gone.status(), Some(Status::Gone));
    let buffer = second.allocate(8).expect("memory");
    let gone = queue.run(Request::send(&to, 0, buffer)).expect_err("nobody receives any more");
    assert_eq!(gone.status(), Some(Status::Gone));
}

#[test]
fn words_and_notifications_are_the_same_whatever_shard_serves_who_asks() {
    const ADDS: u64 = 2000;
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(&programs, directory.path(), "beta", "");
    let [owner, other] = both(&daemon);
    let memory = owner.allocate(1 << 20).expect("memory");
    let region = owner.export_region("board", memory, Access::ALL).expect("a new name");
    thread::scope(|scope| {
        for client in [&owner, &other] {
            scope.spawn(move || {
                let board = client.open_region(None, "board", Access::ALL).expect("it is here");
                let mut queue = client.queue().expect("a queue");
                for _ in 0..ADDS {
                    queue.run(Request::fetch_add(&board, 64, 1)).expect("it may");
                }
            });
        }
    });
    let there = other.open_region(None, "board", Access::ALL).expect("it is here");
    let mut queue = other.queue().expect("a queue");
    let mut own = owner.queue().expect("a queue");
    let sum = queue.run(Request::fetch_add(&there, 64, 0)).expect("it may").value;
    assert_eq!(sum, 2 * ADDS, "no addition is lost");
    // A put is there when its notification is.
    for round in 0..200_u64 {
        let wait = own.submit(Request::wait(region.handle(), 7, 1).deadline(LATE)).expect("room");
        let mut buffer = other.allocate(4096).expect("memory");
        buffer.as_mut_slice().fill(round as u8);
        let put = Request::write(&there, 4096, buffer).then_notify(7);
        queue.run(put).expect("it may");
        wait.wait(&mut own).expect("notified");
        let buffer = owner.allocate(4096).expect("memory");
        let got = own.run(Request::read(region.handle(), 4096, buffer)).expect("it may").payload;
        assert!(got.as_slice().iter().all(|&byte| byte == round as u8), "round {round}");
    }
    let wait = Request::wait(region.handle(), 7, 1).no_wait();
    assert_eq!(own.run(wait).expect_err("no more").status(), Some(Status::WouldBlock));
    drop((region, own, owner));
    let gone = eventually("the region is gone", || queue.run(Request::notify(&there, 7)).err());
    assert_eq!(gone.status(), Some(Status::Gone));
}

/// The shards of a daemon that serve the two shards of alpha, once all lanes of these are up, and
/// how many frames have come from each.
fn homes(daemon: &Daemon) -> Option<[(u64, u64); 2]> {
    let report = daemon.json(&["peers"]);
    let peers = report["peers"].as_array()?;
    let of = |name: &str| {
        let mut entries = peers.iter().filter(|it| it["inbound"] == true && it["name"] == name);
        let (entry, other) = (entries.next()?, entries.next());
        assert!(other.is_none(), "lanes of {name} are at two shards: {report}");
        let lanes = entry["lanes"].as_array().filter(|lanes| lanes.len() == 2)?;
        let frames = lanes.iter().map(|lane| lane["frames_received"].as_u64()).sum::<Option<u64>>();
        let are_up = lanes.iter().all(|lane| lane["up"] == true);
        are_up.then_some((entry["shard"].as_u64()?, frames?))
    };
    Some([of("alpha")?, of("alpha#1")?])
}

/// Puts and gets in regions of clients of both shards there, with notifications.
fn put_and_get(client: &Client, owners: &[Client; 2], regions: [&Handle; 2], mark: u8) {
    let mut queue = client.queue().expect("a queue");
    for (to, (owner, region)) in owners.iter().zip(regions).enumerate() {
        let mut own = owner.queue().expect("a queue");
        let name = format!("board-{to}");
        let board = client.open_region(Some("beta"), &name, Access::ALL).expect("it is there");
        for round in 0..20 {
            let wait = own.submit(Request::wait(region, 7, 1).deadline(LATE)).expect("room");
            let mut buffer = client.allocate(90_000).expect("memory");
            buffer.as_mut_slice().fill(mark + round);
            let put = Request::write(&board, 4096, buffer).then_notify(7).deadline(LATE);
            let buffer = queue.run(put).expect("it may").payload;
            wait.wait(&mut own).expect("notified");
            let there = owner.allocate(90_000).expect("memory");
            let there = own.run(Request::read(region, 4096, there)).expect("it may").payload;
            let got = queue.run(Request::read(&board, 4096, buffer).deadline(LATE));
            let got = got.expect("it may").payload;
            let is_right = |bytes: &[u8]| bytes.iter().all(|&byte| byte == mark + round);
            assert!(is_right(there.as_slice()) && is_right(got.as_slice()), "{mark} {round}");
            queue.run(Request::fetch_add(&board, 64, 1).deadline(LATE)).expect("it may");
        }
        let none = own.run(Request::wait(region, 7, 1).no_wait()).expect_err("each came once");
        assert_eq!(none.status(), Some(Status::WouldBlock));
    }
}

#[test]
fn the_shards_of_a_node_with_a_key_are_served_by_different_shards() {
    const COUNT: u64 = 20;
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let (path, address) = (directory.path(), free_address());
    std::fs::create_dir(path.join("root")).expect("made");
    let keys = ["alpha", "beta"].map(|name| Key::make(&programs, path, name));
    let beta = keys[1].security("integrity")
        + &keys[0].peer("alpha", None)
        + &format!("[listen]\naddress = \"{address}\"\n")
        + &format!("[exports.data]\npath = \"{}\"\nwrite = true\n", path.join("root").display());
    let beta = daemon(&programs, path, "beta", &beta);
    let alpha = keys[0].security("integrity") + &keys[1].peer("beta", Some(address));
    let alpha = daemon(&programs, path, "alpha", &alpha);
    let (owners, far) = (both(&beta), both(&alpha));
    let before = eventually("all lanes are up", || homes(&beta));
    assert_ne!(before[0].0, before[1].0, "{}", beta.json(&["peers"]));
    let mails = [0, 1]
        .map(|it: usize| owners[it].offer_channel(&format!("mail-{it}")).expect("a new name"));
    let regions = [0, 1].map(|it: usize| {
        let memory = owners[it].allocate(1 << 20).expect("memory");
        owners[it].export_region(&format!("board-{it}"), memory, Access::ALL).expect("a new name")
    });
    let handles = regions.each_ref().map(|region| region.handle());
    let files = [0, 1].map(|it: usize| {
        let make = OpenOptions::read_write().create(true);
        far[it].open_export(Some("beta"), "data", format!("file-{it}"), make).expect("it may")
    });
    let write_and_read = |it: usize, mark: u8| {
        let mut queue = far[it].queue().expect("a queue");
        let mut buffer = far[it].allocate(LONG).expect("memory");
        buffer.as_mut_slice().fill(mark);
        let write = Request::write(&files[it], 0, buffer).deadline(LATE);
        let buffer = queue.run(write).expect("it may").payload;
        let read = Request::read(&files[it], 0, buffer).deadline(LATE);
        let buffer = queue.run(read).expect("it may").payload;
        assert!(buffer.as_slice().iter().all(|&byte| byte == mark));
    };
    thread::scope(|scope| {
        for it in [0, 1] {
            let (owner, mail, client) = (&owners[it], &mails[it], &far[it]);
            scope.spawn(move || {
                let mut queue = owner.queue().expect("a queue");
                receive(owner, &mut queue, mail, &[2, 3], COUNT);
            });
            scope.spawn(move || {
                let mut queue = client.queue().expect("a queue");
                for to in [0, 1] {
                    let name = format!("mail-{to}");
                    let to = client.open_channel(Some("beta"), &name).expect("it is there");
                    send(client, &mut queue, &to, 2 + it as u64, COUNT);
                }
            });
        }
    });
    for (it, mark) in [(0, 1), (1, 101)] {
        write_and_read(it, mark);
        put_and_get(&far[it], &owners, handles, mark);
    }
    let mut own = owners[0].queue().expect("a queue");
    let sum = own.run(Request::fetch_add(handles[0], 64, 0)).expect("it may").value;
    assert_eq!(sum, 40, "of both shards");
    let after = homes(&beta).expect("all lanes are up");
    for (before, after) in before.into_iter().zip(after) {
        assert_eq!(before.0, after.0, "a home is kept");
        assert!(after.1 > before.1 + COUNT, "it was asked by its own lanes");
    }
    // An operator ends the lanes of the node, of both shards. They come back where they were, for
    // what was opened is there.
    let ended = beta.pipectl(["peer", "end", "alpha"]).output().expect("starts");
    assert!(ended.status.success(), "{}", words(&ended));
    for (it, mark) in [(0, 7), (1, 8)] {
        write_and_read(it, mark);
    }
    let again = eventually("all lanes are up", || homes(&beta));
    assert_eq!(again.map(|(home, _)| home), before.map(|(home, _)| home));
    let lost = beta.status()["shards"].as_array().expect("shards").clone();
    for shard in lost {
        assert!(shard["counters"]["lanes_lost"].as_u64() >= Some(2), "{shard}");
    }
}
