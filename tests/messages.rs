//! Messages between clients of two nodes, with real daemons: in order, complete, within the memory
//! that is allowed; and what becomes of them when somebody is killed.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use piped_client::{
    BufferState, Cause, Client, ClientBuilder, Handle, Pending, Request, Status, Tag,
};
use rustix::process::Signal;
use system_tests::process::{Pair, Programs, eventually, words as words_of};

const LATE: Duration = Duration::from_secs(300);

fn pair(more: &str) -> Option<(tempfile::TempDir, Pair)> {
    let programs = Programs::find()?;
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start_with(&programs, directory.path(), more);
    Some((directory, pair))
}

/// A message of that length that says which it is.
fn fill(bytes: &mut [u8], sender: u64, number: u64) {
    let (name, rest) = bytes.split_at_mut(16);
    name[..8].copy_from_slice(&sender.to_le_bytes());
    name[8..].copy_from_slice(&number.to_le_bytes());
    rest.iter_mut().enumerate().for_each(|(at, byte)| *byte = byte_at(sender, number, at));
}

fn byte_at(sender: u64, number: u64, at: usize) -> u8 {
    (sender * 31 + number * 7 + at as u64) as u8
}

/// Sender and number of a message whose bytes are right.
fn read(bytes: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let (sender, number) = (word(0), word(8));
    let right =
        bytes[16..].iter().enumerate().all(|(at, &byte)| byte == byte_at(sender, number, at));
    assert!(right, "message {number} of {sender}: other bytes than were sent");
    (sender, number)
}

fn opened(client: &Client, peer: Option<&str>, name: &str) -> Handle {
    eventually("the channel can be opened", || client.open_channel(peer, name).ok())
}

#[test]
fn messages_of_all_lengths_reach_a_client_of_the_same_node_and_of_another() {
    let Some((_directory, pair)) = pair("") else { return };
    let receiver = Client::connect(pair.beta.client_socket()).expect("it serves");
    let mail = receiver.offer_channel("mail").expect("offered");
    for (sender, socket, peer) in
        [(1, pair.alpha.client_socket(), Some("beta")), (2, pair.beta.client_socket(), None)]
    {
        let client = Client::connect(socket).expect("it serves");
        let to = opened(&client, peer, "mail");
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut queue = client.queue().expect("a queue");
                for number in 0..40_u64 {
                    let mut buffer = client.allocate(16 + (1 << (number / 2))).expect("memory");
                    fill(buffer.as_mut_slice(), sender, number);
                    let request = Request::send(&to, number % 2, buffer).deadline(LATE);
                    let done = queue.run(request).expect("taken in");
                    assert_eq!(done.bytes, done.payload.len() as u64);
                }
            });
            let mut queue = receiver.queue().expect("a queue");
            let mut buffer = receiver.allocate(2 << 20).expect("memory");
            for number in 0..40_u64 {
                // Now by its tag, now the next one.
                let tag = if number % 3 == 0 { Tag::Any } else { Tag::Is(number % 2) };
                let done = queue
                    .run(Request::receive(&mail, tag, buffer).deadline(LATE))
                    .expect("received");
                let (bytes, tag) = (done.bytes as usize, done.value);
                assert_eq!((bytes, tag), (16 + (1 << (number / 2)), number % 2));
                assert_eq!(read(&done.payload.as_slice()[..bytes]), (sender, number));
                buffer = done.payload;
            }
        });
    }
    // Who does not want to wait is told that nobody has sent.
    let buffer = receiver.allocate(100).expect("memory");
    let mut queue = receiver.queue().expect("a queue");
    let request = Request::receive(&mail, Tag::Any, buffer).no_wait();
    let error = queue.run(request).expect_err("nothing is there");
    assert_eq!(error.status(), Some(Status::WouldBlock), "{error}");
    drop(queue);
    // A name is taken as long as somebody receives under it.
    let second = Client::connect(pair.beta.client_socket()).expect("it serves");
    let taken = second.offer_channel("mail").expect_err("taken").to_string();
    assert!(taken.contains("choose another"), "{taken}");
    let exports = pair.beta.json(&["exports"]);
    assert_eq!(exports["channels"][0]["name"], "mail");
    drop(mail);
    let _again = eventually("the name is free", || second.offer_channel("mail").ok());
    let missing = second.open_channel(None, "post").expect_err("nobody").to_string();
    assert!(missing.contains("no channel `post`"), "{missing}");
}

#[test]
fn many_senders_to_one_lose_nothing_and_stay_in_order_within_the_memory_allowed() {
    const SENDERS: u64 = 64;
    const TAGS: u64 = 16;
    const EACH: u64 = 2;
    let limit = 256 << 10;
    let Some((_directory, pair)) = pair("") else { return };
    let set = |key: &str| format!("{key}={limit}B");
    let sessions = ["global.sessions=80", "user.sessions=80"].map(str::to_owned);
    let limits = [set("global.early_arrival"), set("client.early_arrival")];
    for daemon in [&pair.alpha, &pair.beta] {
        let words = sessions.iter().chain(&limits).map(String::as_str);
        let output = daemon.pipectl(["limits", "set"].into_iter().chain(words)).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{}", words_of(&output));
    }
    let receiver = Client::connect(pair.beta.client_socket()).expect("it serves");
    let mail = receiver.offer_channel("mail").expect("offered");
    thread::scope(|scope| {
        for sender in 0..SENDERS {
            let socket = match sender % 2 {
                0 => pair.alpha.client_socket(),
                _ => pair.beta.client_socket(),
            };
            let peer = (sender % 2 == 0).then_some("beta");
            scope.spawn(move || {
                let client = ClientBuilder::new().arena_bytes(1 << 20).connect(socket);
                let client = client.expect("it serves");
                let to = opened(&client, peer, "mail");
                let mut queue = client.queue().expect("a queue");
                let mut pending: Vec<Pending<_>> = Vec::new();
                for number in 0..TAGS * EACH {
                    // Short ones, and some that are announced.
                    let length = if number % 5 == 0 { 20_000 } else { 100 + number as usize };
                    let mut buffer = client.allocate(length).expect("memory");
                    fill(buffer.as_mut_slice(), sender, number);
                    let request = Request::send(&to, number % TAGS, buffer).deadline(LATE);
                    pending.push(queue.submit(request).expect("room"));
                }
                for pending in pending {
                    pending.wait(&mut queue).expect("taken in");
                }
            });
        }
        let mut queue = receiver.queue().expect("a queue");
        let mut buffer = receiver.allocate(64 << 10).expect("memory");
        let mut last = BTreeMap::new();
        for _ in 0..SENDERS * TAGS * EACH {
            let request = Request::receive(&mail, Tag::Any, buffer).deadline(LATE);
            let done = queue.run(request).expect("received");
            let (sender, number) = read(&done.payload.as_slice()[..done.bytes as usize]);
            assert_eq!(done.value, number % TAGS);
            let before = last.insert((sender, done.value), number);
            assert!(before.is_none_or(|before| before + TAGS == number), "{sender}: {number}");
            buffer = done.payload;
        }
        assert_eq!(last.len() as u64, SENDERS * TAGS);
    });
    let report = pair.beta.json(&["limits"]);
    let rows = report["limits"].as_array().expect("rows");
    for name in ["global.early_arrival", "client.early_arrival"] {
        let row = rows.iter().find(|row| row["name"] == name).expect(name);
        let (used, high) = (row["used"].as_u64(), row["high"].as_u64());
        assert_eq!(used, Some(0), "{row}");
        assert!(high.is_some_and(|high| (1..=limit).contains(&high)), "{row}");
    }
}

#[test]
fn a_receiver_that_is_killed_ends_what_waits_for_it() {
    let Some((_directory, pair)) = pair("[planner]\neager = \"0B\"\n") else { return };
    // In a process of its own, which nobody asks to end in order.
    let receiver = Client::connect(pair.beta.client_socket()).expect("it serves");
    let mail = receiver.offer_channel("mail").expect("offered");
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let to = opened(&client, Some("beta"), "mail");
    let mut queue = client.queue().expect("a queue");
    let buffer = client.allocate(1 << 20).expect("memory");
    let pending = queue.submit(Request::send(&to, 1, buffer).deadline(LATE)).expect("room");
    queue.flush();
    drop((mail, receiver));
    let error = pending.wait(&mut queue).expect_err("nobody receives");
    assert_eq!(error.status(), Some(Status::Gone), "{error}");
    assert!(matches!(error.buffer, BufferState::Returned(_)));
}

#[test]
fn a_peer_that_is_killed_ends_messages_with_an_error_that_has_a_type() {
    let Some((_directory, mut pair)) = pair("") else { return };
    let receiver = Client::connect(pair.beta.client_socket()).expect("it serves");
    let mail = receiver.offer_channel("mail").expect("offered");
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let to = opened(&client, Some("beta"), "mail");
    let mut queue = client.queue().expect("a queue");
    let mut receive = receiver.queue().expect("a queue");
    // One gets through; the others are short and long, and nobody asks for them.
    queue.send(&to, 1, client.allocate(100).expect("memory")).expect("taken in");
    let buffer = receiver.allocate(100).expect("memory");
    receive.receive(&mail, 1, buffer).expect("received");
    let pending: Vec<_> = [8 << 20, 100, 1 << 20]
        .map(|length| {
            let buffer = client.allocate(length).expect("memory");
            let request = Request::send(&to, 2, buffer).deadline(Duration::from_secs(20));
            queue.submit(request).expect("room")
        })
        .into();
    queue.flush();
    pair.beta.process.signal(Signal::KILL);
    pair.beta.process.exit();
    let settings = pair.settings[1].clone();
    pair.beta.restart(&settings);
    for (number, pending) in pending.into_iter().enumerate() {
        match pending.wait(&mut queue) {
            // The short one may have been taken in before.
            Ok(_) => assert_eq!(number, 1),
            Err(error) => {
                let typed = [Status::OutcomeUnknown, Status::Gone, Status::BadHandle];
                assert!(error.status().is_some_and(|it| typed.contains(&it)), "{number}: {error}");
            }
        }
    }
    // Who waited to receive hears it as well.
    let buffer = receiver.allocate(100).expect("memory");
    let error = receive.receive(&mail, Tag::Any, buffer).expect_err("the daemon is gone");
    assert!(matches!(error.cause, Cause::Disconnected | Cause::NotSubmitted(_)), "{error}");
}

#[test]
fn what_is_advised_is_what_messages_need_and_can_be_set() {
    const GRANULE: u64 = 64 << 10;
    let Some((_directory, pair)) = pair("[planner]\neager = \"64KiB\"\n") else { return };
    let advise = |more: &[&str]| {
        let words = ["limits", "advise"].into_iter().chain(more.iter().copied());
        pair.beta.pipectl(words).output().expect("it runs")
    };
    let required = || {
        let advice = pair.beta.json(&["limits", "advise"]);
        ["global.early_arrival", "client.early_arrival"].map(|name| {
            let limits = advice["limits"].as_array().expect("rows");
            let row = limits.iter().find(|row| row["name"] == name).expect(name);
            row["required_bytes"].as_u64()
        })
    };
    assert_eq!(required(), [None, None]);
    let output = advise(&[]);
    assert!(output.status.success() && words_of(&output).contains("No messages were seen"));
    let output = advise(&["--apply"]);
    assert_eq!(output.status.code(), Some(6), "{}", words_of(&output));

    let receiver = Client::connect(pair.beta.client_socket()).expect("it serves");
    let mail = receiver.offer_channel("mail").expect("offered");
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let to = opened(&client, Some("beta"), "mail");
    let mut sender = client.queue().expect("a queue");
    let mut send = |messages: u64| -> Vec<Pending<_>> {
        let one = |_| {
            let buffer = client.allocate(20_000).expect("memory");
            sender.submit(Request::send(&to, 1, buffer).deadline(LATE)).expect("room")
        };
        let pending = (0..messages).map(one).collect();
        sender.flush();
        pending
    };
    let receive = |messages: u64| {
        let mut queue = receiver.queue().expect("a queue");
        let mut buffer = receiver.allocate(64 << 10).expect("memory");
        for _ in 0..messages {
            buffer = queue.receive(&mail, 1, buffer).expect("received").0;
        }
    };
    let channel = |key: &str| pair.beta.json(&["limits", "advise"])["channels"][0][key].clone();
    // Nobody has asked for them, and they are needed already; afterwards it is the same.
    let _three = send(3);
    eventually("they are there", || (required() == [Some(3 * GRANULE); 2]).then_some(()));
    receive(3);
    assert_eq!(required(), [Some(3 * GRANULE); 2]);
    assert_eq!((channel("name"), channel("stalled")), ("mail".into(), 0.into()));
    assert_eq!(channel("senders")[0]["peer"], "alpha");
    assert_eq!(channel("high_bytes"), 3 * GRANULE);

    let output = advise(&["--apply"]);
    assert!(output.status.success(), "{}", words_of(&output));
    let report = pair.beta.json(&["limits"]);
    for name in ["global.early_arrival", "client.early_arrival"] {
        let rows = report["limits"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["name"] == name).expect(name);
        assert_eq!(row["limit"], 3 * GRANULE, "{row}");
    }
    // More than was seen: two find no memory, and now they are seen.
    let _five = send(5);
    eventually("two wait", || (channel("stalled") == 2).then_some(()));
    assert_eq!(required(), [Some(5 * GRANULE); 2]);
    receive(5);
    assert_eq!(required(), [Some(5 * GRANULE); 2]);
    // As people see it, also where there is little room.
    let mut narrow = pair.beta.pipectl(["limits", "advise"]);
    let text = words_of(&narrow.env("COLUMNS", "40").output().expect("it runs"));
    assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    for word in ["mail", "320 KiB", "no start-up", "alpha 64 KiB"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}
