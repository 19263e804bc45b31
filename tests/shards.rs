//! Clients of one daemon that different shards serve, with real threads: messages, notifications and
//! atomics between them and from another node, and what becomes of them when somebody goes.
#![forbid(unsafe_code)]

use std::thread;
use std::time::Duration;

use piped_client::{Access, Client, ClientBuilder, Handle, Queue, Request, Status, Tag};
use system_tests::process::{Daemon, Programs, eventually, free_address};

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
