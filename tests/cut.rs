//! A cable that is cut: two nodes in network namespaces of their own, and between them a link that goes
//! down, an address that is taken away, packets that get lost without a word. What is asked meanwhile
//! ends in its time; what has time goes on when the cable is whole, without help.
//!
//! Needs root and `ip`; skips where it has not.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use piped_client::{
    Buffer, Client, ClientBuilder, Done, Handle, OpenOptions, Pending, Queue, Request,
    RequestError, Status, Waited,
};
use system_tests::process::{
    BLOCKS_BYTES, Daemon, PATIENCE, Programs, command, eventually, pattern, words,
};

const BLOCK: usize = 64 << 10;
const EACH: usize = 8;
const LATE: Duration = Duration::from_secs(300);

/// Two namespaces with a cable. Taken down when dropped, and also when this process dies.
struct Net {
    names: [String; 2],
    /// Waits for the end of its input, which is our end, and cleans up.
    cleaner: Child,
}

impl Net {
    /// `None`, with the reason printed, where there can be none.
    fn up(tag: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: namespaces need root");
            return None;
        }
        let names = ["a", "b"].map(|end| format!("piped-{tag}-{}-{end}", std::process::id()));
        let [a, b] = &names;
        let script = format!(
            "trap '' INT TERM; read -r _; for n in {a} {b}; do ip netns pids $n 2>/dev/null | \
             xargs -r kill -9; ip netns del $n 2>/dev/null; done"
        );
        let mut cleaner = Command::new("sh");
        cleaner.args(["-c", &script]).stdin(Stdio::piped());
        let make = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add cable type veth peer name cable netns {b}"),
            format!("-n {a} addr add 10.77.0.1/24 dev cable"),
            format!("-n {b} addr add 10.77.0.2/24 dev cable"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
            format!("-n {a} link set cable up"),
            format!("-n {b} link set cable up"),
        ];
        let net = Self { cleaner: cleaner.spawn().expect("a shell"), names };
        for step in &make {
            if let Err(reason) = net.try_ip(step) {
                eprintln!("skipped: ip {step}: {reason}");
                return None;
            }
        }
        Some(net)
    }

    fn try_ip(&self, arguments: &str) -> Result<(), String> {
        let output = Command::new("ip").args(arguments.split(' ')).output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(words(&output).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Changes something at an end.
    fn ip(&self, end: usize, arguments: &str) {
        self.try_ip(&format!("-n {} {arguments}", self.names[end])).expect("it worked before");
    }

    /// A daemon at an end.
    fn daemon(
        &self,
        end: usize,
        programs: &Programs,
        directory: &Path,
        name: &str,
        more: &str,
    ) -> Daemon {
        let mut inside = command(Path::new("ip"));
        inside.args(["netns", "exec", &self.names[end]]).arg(&programs.piped);
        Daemon::start_by(inside, programs, directory, name, more)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if let Some(mut input) = self.cleaner.stdin.take() {
            let _ = input.write_all(b"\n");
        }
        let _ = self.cleaner.wait();
    }
}

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

fn cut_and_heal(tag: &str, cut: impl Fn(&Net), heal: impl Fn(&Net)) {
    cut_and_heal_with(tag, "", cut, heal);
}

/// Both daemons have `more`.
fn cut_and_heal_with(tag: &str, more: &str, cut: impl Fn(&Net), heal: impl Fn(&Net)) {
    let Some(programs) = Programs::find() else { return };
    let Some(net) = Net::up(tag) else { return };
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

/// What is sent lies in memory that the kernel keeps until the other side has it, or the lane is given up.
#[test]
fn a_link_that_goes_down_while_memory_is_lent() {
    let set = |net: &Net, state: &str| net.ip(1, &format!("link set cable {state}"));
    let more = "[planner]\nzero_copy = \"on\"\n";
    cut_and_heal_with("lent", more, |net| set(net, "down"), |net| set(net, "up"));
}

#[test]
fn a_link_that_goes_down() {
    let set = |net: &Net, state: &str| net.ip(1, &format!("link set cable {state}"));
    cut_and_heal("down", |net| set(net, "down"), |net| set(net, "up"));
}

#[test]
fn an_address_that_is_taken_away() {
    let change = |net: &Net, what: &str| net.ip(1, &format!("addr {what} 10.77.0.2/24 dev cable"));
    cut_and_heal("addr", |net| change(net, "del"), |net| change(net, "add"));
}

#[test]
fn packets_that_get_lost_without_a_word() {
    // To a neighbour that is not there, from either end.
    let lose = |net: &Net| {
        for (end, address) in [(0, "10.77.0.2"), (1, "10.77.0.1")] {
            let wrong = "lladdr 02:00:00:00:00:99 nud permanent";
            net.ip(end, &format!("neigh replace {address} {wrong} dev cable"));
        }
    };
    let find = |net: &Net| {
        for (end, address) in [(0, "10.77.0.2"), (1, "10.77.0.1")] {
            net.ip(end, &format!("neigh del {address} dev cable"));
        }
    };
    cut_and_heal("lost", lose, find);
}
