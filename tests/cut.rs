//! A cable that is cut: two nodes in network namespaces of their own, and between them a link that
//! goes down, an address that is taken away, packets that get lost without a word. What is asked
//! meanwhile ends in its time; what has time goes on when the cable is whole, without help.
//!
//! Needs root and `ip`; skips where it has not.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::Duration;

use piped_client::{
    Buffer, Client, ClientBuilder, Done, Handle, OpenOptions, Pending, Queue, Request,
    RequestError, Status, Waited,
};
use system_tests::cable::Cable;
use system_tests::process::{BLOCKS_BYTES, Daemon, PATIENCE, Programs, eventually, pattern};

const BLOCK: usize = 64 << 10;
const EACH: usize = 8;
const LATE: Duration = Duration::from_secs(300);

/// A client of alpha with files of beta.
struct Session {
    client: Client,
    queue: Queue,
    blocks: Handle,
    new: Handle,
}

impl Session {
    fn start(alpha: &Daemon) -> Self {
        let builder = ClientBuilder::new().arena_bytes(16 << 20);
        let client = builder.connect(alpha.client_socket()).expect("it serves");
        let queue = client.queue().expect("a queue");
        let open = |path, options| client.open_export(Some("beta"), "data", path, options);
        let blocks = open("blocks", OpenOptions::read()).expect("it is there");
        let new = open("new", OpenOptions::read_write().create(true)).expect("made");
        Self { client, queue, blocks, new }
    }

    /// Reads and writes.
    fn ask(&mut self, deadline: Duration) -> [Vec<Pending<Buffer>>; 2] {
        let mut asked = [Vec::new(), Vec::new()];
        for number in 0..EACH {
            let at = (number * BLOCK) as u64;
            let mut buffers = [(); 2].map(|()| self.client.allocate(BLOCK).expect("memory"));
            buffers[1].as_mut_slice().fill(number as u8 + 1);
            let [read, write] = buffers;
            let read = Request::read(&self.blocks, at, read).deadline(deadline);
            let write = Request::write(&self.new, at, write).deadline(deadline);
            asked[0].push(self.queue.submit(read).expect("room"));
            asked[1].push(self.queue.submit(write).expect("room"));
        }
        self.queue.flush();
        asked
    }

    fn end(&mut self, pending: Pending<Buffer>) -> Result<Done<Buffer>, RequestError> {
        match pending.wait_for(&mut self.queue, PATIENCE) {
            Waited::Ended(result) => result,
            Waited::Underway(_) => panic!("a request did not end in {PATIENCE:?}"),
        }
    }

    fn check(&mut self, asked: [Vec<Pending<Buffer>>; 2], directory: &Path) {
        let [reads, writes] = asked;
        let expected = pattern(BLOCKS_BYTES);
        for (number, pending) in reads.into_iter().enumerate() {
            let done = self.end(pending).expect("read");
            let block = &expected[number * BLOCK..(number + 1) * BLOCK];
            assert!(done.payload.as_slice() == block, "block {number}");
        }
        for pending in writes {
            self.end(pending).expect("written");
        }
        let written = std::fs::read(directory.join("root/new")).expect("there");
        for (number, block) in written.chunks(BLOCK).enumerate() {
            assert!(block.iter().all(|byte| *byte == number as u8 + 1), "block {number}");
        }
    }

    /// All end, and say why.
    fn check_failed(&mut self, asked: [Vec<Pending<Buffer>>; 2]) {
        for pending in asked.into_iter().flatten() {
            let error = self.end(pending).expect_err("nobody is reached");
            let typed = [Status::PeerLost, Status::DeadlineExceeded];
            assert!(error.status().is_some_and(|it| typed.contains(&it)), "{error}");
        }
        // Buffers that the kernel had for the lost lane come back, too.
        while let Some(released) = self.queue.poll_released() {
            drop(released);
        }
    }
}

fn epochs(alpha: &Daemon) -> Vec<u64> {
    let status = alpha.status();
    let lanes = status["shards"][0]["peers"][0]["lanes"].as_array().expect("lanes");
    lanes.iter().map(|lane| lane["epoch"].as_u64().expect("a number")).collect()
}

fn cut_and_heal(tag: &str, cut: impl Fn(&Cable), heal: impl Fn(&Cable)) {
    cut_and_heal_with(tag, "", cut, heal);
}

/// Both daemons have `more`.
fn cut_and_heal_with(tag: &str, more: &str, cut: impl Fn(&Cable), heal: impl Fn(&Cable)) {
    let Some(programs) = Programs::find() else { return };
    let Some(net) = Cable::up(tag) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().join("root");
    std::fs::create_dir(&root).expect("made");
    std::fs::write(root.join("blocks"), pattern(BLOCKS_BYTES)).expect("written");
    let trusted = "allow_plain = [\"10.77.0.0/24\"]";
    let beta = format!(
        "[listen]\naddress = \"10.77.0.2:7411\"\n{trusted}\n[exports.data]\npath = \"{}\"\nwrite = \
         true\n{more}",
        root.display()
    );
    let beta = net.daemon(1, &programs, directory.path(), "beta", &beta);
    let alpha = format!("[listen]\n{trusted}\n[peers.beta]\naddress = \"10.77.0.2:7411\"\n{more}");
    let alpha = net.daemon(0, &programs, directory.path(), "alpha", &alpha);
    alpha.await_lanes();
    let mut session = Session::start(&alpha);
    let asked = session.ask(LATE);
    session.check(asked, directory.path());

    // For a moment: nobody but the clock notices.
    cut(&net);
    let patient = session.ask(LATE);
    let hasty = session.ask(Duration::from_millis(300));
    session.check_failed(hasty);
    heal(&net);
    session.check(patient, directory.path());
    assert_eq!(epochs(&alpha), [1, 1], "the lanes outlive it");

    // Until both sides have given up.
    cut(&net);
    let patient = session.ask(LATE);
    let hasty = session.ask(Duration::from_secs(1));
    session.check_failed(hasty);
    for node in [&alpha, &beta] {
        eventually("both lanes are lost", || (node.number("lanes_lost") >= 2).then_some(()));
    }
    let asked = session.ask(Duration::from_millis(300));
    session.check_failed(asked);
    heal(&net);
    session.check(patient, directory.path());
    assert!(alpha.number("retries") >= EACH as u64, "what was under way was asked again");
    alpha.await_lanes();
    assert!(epochs(&alpha).iter().all(|epoch| *epoch >= 2));
    let asked = session.ask(LATE);
    session.check(asked, directory.path());
    assert_eq!((alpha.number("transfers"), alpha.number("peer_faults")), (0, 0));
    eventually("nothing is left", || (beta.number("serves") == 0).then_some(()));
    for node in [&alpha, &beta] {
        eventually("nothing is lent", || (node.number("lent") == 0).then_some(()));
        let lent = node.number("sends_zero_copy") + node.number("sends_copied");
        assert!(lent > 0 || more.is_empty(), "nothing was ever lent");
    }
}

/// What is sent lies in memory that the kernel keeps until the other side has it, or the lane is
/// given up.
#[test]
fn a_link_that_goes_down_while_memory_is_lent() {
    let set = |net: &Cable, state: &str| net.ip(1, &format!("link set cable {state}"));
    let more = "[planner]\nzero_copy = \"on\"\n";
    cut_and_heal_with("lent", more, |net| set(net, "down"), |net| set(net, "up"));
}

#[test]
fn a_link_that_goes_down() {
    let set = |net: &Cable, state: &str| net.ip(1, &format!("link set cable {state}"));
    cut_and_heal("down", |net| set(net, "down"), |net| set(net, "up"));
}

#[test]
fn an_address_that_is_taken_away() {
    let change =
        |net: &Cable, what: &str| net.ip(1, &format!("addr {what} 10.77.0.2/24 dev cable"));
    cut_and_heal("addr", |net| change(net, "del"), |net| change(net, "add"));
}

#[test]
fn packets_that_get_lost_without_a_word() {
    // To a neighbour that is not there, from either end.
    let lose = |net: &Cable| {
        for (end, address) in [(0, "10.77.0.2"), (1, "10.77.0.1")] {
            let wrong = "lladdr 02:00:00:00:00:99 nud permanent";
            net.ip(end, &format!("neigh replace {address} {wrong} dev cable"));
        }
    };
    let find = |net: &Cable| {
        for (end, address) in [(0, "10.77.0.2"), (1, "10.77.0.1")] {
            net.ip(end, &format!("neigh del {address} dev cable"));
        }
    };
    cut_and_heal("lost", lose, find);
}
