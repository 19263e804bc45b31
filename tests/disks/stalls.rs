//! A device that answers nothing for a while: its requests end at their deadlines and keep their
//! buffers, everybody else goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use piped_client::{BufferState, Handle, OpenOptions, Pending, Request, RequestId, Status, Waited};
use rustix::process::Signal;
use system_tests::process::{Daemon, PATIENCE, Running, eventually};

use crate::filesystem::{Faulty, Rules};
use crate::nodes::{LATE, Nodes, PLACES, Place, Session, check_bytes, noise};
use crate::{World, world};

const LENGTH: usize = 1 << 20;
/// What those who wait for the device ask for at once, of each place: far more than a kernel has
/// workers by itself.
const MANY: usize = 24;
const SHORT: Duration = Duration::from_millis(300);

/// A client of a device that holds everything, with requests of all kinds under way.
struct Stalled {
    session: Session,
    files: Vec<Handle>,
    pending: Vec<Pending<piped_client::Buffer>>,
    syncs: Vec<Pending<()>>,
    /// Files of this node that are read into the buffers of these requests.
    read: BTreeMap<Id, String>,
}

impl Stalled {
    /// Reads and writes, aligned and not, durable and beyond the end, and syncs; each file of its
    /// own, so that none waits for another's.
    fn begin(nodes: &Nodes, sick: &Faulty, places: &[Place], deadline: Duration) -> Self {
        let mut session = nodes.client();
        let (mut files, mut pending, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut names, mut read) = (Vec::new(), BTreeMap::new());
        for &place in places {
            for number in 0..MANY {
                let name = format!("{place:?}{number}");
                sick.put(&name, &noise(number as u64, LENGTH));
                files.push(session.open(place, "sick", sick.path(), &name));
                names.push((place, name));
            }
        }
        sick.hold();
        for (number, file) in files.iter().enumerate() {
            let buffer = session.filled(&noise(1, 64 << 10));
            let request = match number % 4 {
                0 => Request::read(file, 0, buffer),
                1 => Request::write(file, 777, buffer),
                2 => Request::write(file, LENGTH as u64, buffer).durable(),
                _ => {
                    drop(buffer);
                    syncs.push(session.submit(Request::sync(file).deadline(deadline)));
                    continue;
                }
            };
            pending.push(session.submit(request.deadline(deadline)));
            if let (Some(request), (Place::Passed | Place::Local, name), 0) =
                (pending.last(), &names[number], number % 4)
            {
                read.insert(Id::of(request.id()), name.clone());
            }
        }
        eventually("the device has some", || (sick.held() >= 8).then_some(()));
        Self { session, files, pending, syncs, read }
    }

    /// All end as told; those whose buffers are held.
    fn all_end(&mut self, status: Status) -> BTreeSet<Id> {
        let mut held = BTreeSet::new();
        for pending in std::mem::take(&mut self.pending) {
            let id = pending.id();
            let error = self.session.end(pending).expect_err("nobody answered");
            assert_eq!(error.status(), Some(status), "{error}");
            match error.buffer {
                BufferState::Held => assert!(held.insert(Id::of(id))),
                BufferState::Returned(_) => {}
                other => panic!("{other:?}"),
            }
        }
        for pending in std::mem::take(&mut self.syncs) {
            let error = self.session.end(pending).expect_err("nobody answered");
            assert_eq!(error.status(), Some(status), "{error}");
        }
        held
    }

    /// Each that is held is released once, and can be used again.
    fn all_released(&mut self, mut held: BTreeSet<Id>, sick: &Faulty) {
        // What the kernel had not begun is free as soon as it says so, and nothing else is.
        let reading = sick.reading();
        while let Some(released) = self.session.queue.poll_released() {
            let id = Id::of(released.id);
            let begun = self.read.get(&id).is_some_and(|name| reading.contains(name));
            assert!(!begun, "the device has it: {:?}", self.read[&id]);
            assert!(held.remove(&id), "released twice, or never held");
        }
        assert!(held.iter().any(|id| self.read.contains_key(id)), "the device has some");
        sick.set(Rules::default());
        while !held.is_empty() {
            let released = self.session.queue.wait_released(Some(PATIENCE)).expect("one more");
            assert!(held.remove(&Id::of(released.id)), "released twice, or never held");
            let mut buffer = released.buffer;
            buffer.as_mut_slice().fill(7);
            let read = Request::read(&self.files[0], 8192, buffer);
            let done = self.session.run(read.deadline(LATE)).expect("sound again");
            check_bytes(done.payload.as_slice(), &noise(0, LENGTH)[8192..][..64 << 10]);
        }
        let more = self.session.queue.wait_released(Some(Duration::from_millis(50)));
        assert!(more.is_none(), "nothing is released twice");
        for (number, file) in self.files.iter().enumerate() {
            let bytes = noise(number as u64, 4096);
            self.session.write(file, 8192, &bytes, true);
            self.session.check(file, 8192, &bytes);
        }
    }
}

/// A request's id, to be put in order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id(String);

impl Id {
    fn of(id: RequestId) -> Self {
        Self(format!("{id:?}"))
    }
}

/// All that can be asked of a file, at every place, with all data compared; files are opened and
/// closed.
fn everything_works(session: &mut Session, sound: &Path, round: u64) {
    for place in PLACES {
        let name = format!("sound{place:?}");
        let file = session.open(place, "sound", sound, &name);
        let bytes = noise(round, LENGTH);
        session.write(&file, 0, &bytes, false);
        session.write(&file, 777, &bytes[..5000], true);
        session.write(&file, (LENGTH * (1 + round as usize % 3)) as u64, &bytes[..70_000], false);
        session.run(Request::sync(&file).deadline(LATE)).expect("sound");
        session.check(&file, 777, &bytes[..5000]);
        session.check(&file, 8192, &bytes[8192..]);
        let copy = Request::copy(&file, 8192, &file, 4 * LENGTH as u64, 300_000);
        assert_eq!(session.run(copy.deadline(LATE)).expect("sound").bytes, 300_000);
        session.check(&file, 4 * LENGTH as u64, &bytes[8192..][..300_000]);
        check_bytes(
            &std::fs::read(sound.join(&name)).expect("ours")[777..][..5000],
            &bytes[..5000],
        );
        // Many inodes, for what the kernel orders by inode.
        for number in 0..16 {
            let name = format!("many{number}");
            let file = session.open(place, "sound", sound, &name);
            session.write(&file, 13, &bytes[..100], false);
            session.check(&file, 13, &bytes[..100]);
        }
        std::fs::remove_file(sound.join(&name)).expect("ours");
    }
}

#[test]
fn a_device_that_stalls_ten_seconds_costs_its_clients_alone() {
    let Some(World { nodes, sick, sound }) = world() else { return };
    let begun = now();
    let mut stalled = Stalled::begin(&nodes, &sick, &PLACES, SHORT);
    let mut other = nodes.client();
    let mut round = 0;
    everything_works(&mut other, sound.path(), round);
    let held = stalled.all_end(Status::DeadlineExceeded);
    assert!(held.len() >= 8, "the kernel has them: {}", held.len());
    while now() - begun < Duration::from_secs(10) {
        round += 1;
        everything_works(&mut other, sound.path(), round);
    }
    assert!(sick.held() > 0);
    stalled.all_released(held, &sick);
    everything_works(&mut other, sound.path(), round + 1);
}

#[test]
fn a_long_write_to_a_device_that_stalls_does_not_hold_up_its_lane() {
    let Some(World { nodes, sick, sound }) = world() else { return };
    let mut stalled = Stalled::begin(&nodes, &sick, &[Place::Remote], LATE);
    let long = Request::write(&stalled.files[0], 0, stalled.session.buffer(12 << 20));
    let long = stalled.session.submit(long.deadline(LATE));
    let mut other = nodes.client();
    for round in 0..3 {
        everything_works(&mut other, sound.path(), round);
    }
    sick.set(Rules::default());
    let error = stalled.session.end(long).expect_err("the device took none of it for too long");
    assert_eq!(error.status(), Some(Status::WouldBlock), "{error}");
    everything_works(&mut other, sound.path(), 3);
    // Of the short ones some had no room either.
    for pending in stalled.pending {
        if let Err(error) = stalled.session.end(pending) {
            assert_eq!(error.status(), Some(Status::WouldBlock), "{error}");
        }
    }
    for pending in stalled.syncs {
        stalled.session.end(pending).expect("sound again");
    }
}

#[test]
fn a_cancelled_request_whose_device_stalls_keeps_its_buffer_until_it_is_free() {
    let Some(World { nodes, sick, sound }) = world() else { return };
    let mut stalled = Stalled::begin(&nodes, &sick, &PLACES[..2], LATE);
    for pending in &stalled.pending {
        assert!(stalled.session.queue.cancel(pending));
    }
    for pending in &stalled.syncs {
        assert!(stalled.session.queue.cancel(pending));
    }
    let held = stalled.all_end(Status::Cancelled);
    assert!(held.len() >= 8);
    everything_works(&mut nodes.client(), sound.path(), 1);
    stalled.all_released(held, &sick);
}

#[test]
fn a_client_that_dies_while_its_device_stalls_leaves_when_it_can() {
    let Some(World { nodes, sick, sound }) = world() else { return };
    let mut other = nodes.client();
    let before = nodes.alpha.number("sessions");
    for (number, place) in ["sick", "beta:sick"].into_iter().enumerate() {
        sick.put("f", &noise(1, LENGTH));
        let sync_free = sick.counts().reads;
        let arguments = if number == 0 {
            ["--export", "sick", "--path", "f"].to_vec()
        } else {
            ["--peer", "beta", "--export", "sick", "--path", "f"].to_vec()
        };
        let load = ["--size", "64KiB", "--depth", "64", "--span", "1MiB", "--seconds", "600"];
        let mut bench = nodes.alpha.pipectl([&["bench", "read"], &arguments[..], &load].concat());
        let mut client = Running(bench.spawn().expect("started"));
        eventually("it works", || (sick.counts().reads > sync_free + 200).then_some(()));
        sick.hold();
        eventually("the device has some of it", || (sick.held() > 0).then_some(()));
        client.signal(Signal::KILL);
        client.exit();
        everything_works(&mut other, sound.path(), number as u64);
        sick.set(Rules::default());
        eventually("its session and all it had are gone", || {
            let idle = nodes.alpha.staged() == 0 && nodes.alpha.number("transfers") == 0;
            (idle && nodes.alpha.number("sessions") == before).then_some(())
        });
        everything_works(&mut other, sound.path(), number as u64);
        eprintln!("{place}: gone");
    }
}

#[test]
fn a_daemon_stops_in_time_although_a_device_stalls() {
    let Some(World { mut nodes, sick, sound }) = world() else { return };
    let mut stalled = Stalled::begin(&nodes, &sick, &PLACES[..2], LATE);
    nodes.alpha.process.signal(Signal::TERM);
    for pending in std::mem::take(&mut stalled.pending) {
        match pending.wait_for(&mut stalled.session.queue, PATIENCE) {
            Waited::Ended(Err(_)) => {}
            other => panic!("it is told: {other:?}"),
        }
    }
    // Requests are told of first.
    let is_closed = || (!stalled.session.client.is_connected()).then_some(());
    eventually("its session is closed", is_closed);
    // The kernel keeps the process until the device has answered what it was asked, but its doors
    // are free.
    eventually("its doors are free", || {
        (!nodes.alpha.client_socket().exists() && !nodes.alpha.admin_socket().exists())
            .then_some(())
    });
    eventually("it says that it has ended", || is_leaving(&nodes.alpha).then_some(()));
    let next = nodes.next_alpha();
    next.await_lanes();
    everything_works(&mut Session::of(&next), sound.path(), 1);
    sick.set(Rules::default());
    let status = nodes.alpha.process.exit();
    assert!(status.code().is_some(), "it ended by itself: {status}");
    // And one that serves, which the next one of its own address follows.
    sick.hold();
    let client = Session::of(&next);
    let file = client.open(Place::Remote, "sick", sick.path(), "f");
    let mut session = client;
    let read = Request::read(&file, 0, session.buffer(4096)).deadline(SHORT);
    let _ = session.run(read);
    nodes.beta.process.signal(Signal::TERM);
    eventually("it says that it has ended", || is_leaving(&nodes.beta).then_some(()));
    let beta = nodes.next_beta();
    next.await_lanes();
    everything_works(&mut session, sound.path(), 2);
    sick.set(Rules::default());
    nodes.beta.process.exit();
    drop(beta);
}

#[test]
fn a_second_signal_does_not_wait_for_a_device_that_stalls() {
    let Some(World { mut nodes, sick, .. }) = world() else { return };
    let stalled = Stalled::begin(&nodes, &sick, &PLACES[..1], LATE);
    nodes.alpha.process.signal(Signal::TERM);
    eventually("it stops", || nodes.alpha.log().contains("stopping").then_some(()));
    // It would wait for the device for seconds.
    nodes.alpha.process.signal(Signal::INT);
    eventually("it stops at once", || nodes.alpha.log().contains("stopped at once").then_some(()));
    let is_closed = || (!stalled.session.client.is_connected()).then_some(());
    eventually("its session is closed", is_closed);
    eventually("it says that it has ended", || is_leaving(&nodes.alpha).then_some(()));
    assert!(!nodes.alpha.client_socket().exists() && !nodes.alpha.admin_socket().exists());
    sick.set(Rules::default());
    assert_eq!(nodes.alpha.process.exit().code(), Some(0), "{}", nodes.alpha.log());
}

/// All that is left of it is what the kernel does not let go.
fn is_leaving(daemon: &Daemon) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.process.0.id()));
    let state = stat.unwrap_or_default();
    state.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'))
}

#[test]
fn files_are_opened_and_closed_although_others_hang() {
    let Some(World { nodes, sick, sound }) = world() else { return };
    let stalled = Stalled::begin(&nodes, &sick, &PLACES, LATE);
    // Handles whose requests hang are closed, and their session too.
    let Stalled { session, files, pending, syncs, .. } = stalled;
    drop((files, pending, syncs));
    let mut other = nodes.client();
    for round in 0..3 {
        everything_works(&mut other, sound.path(), round);
        let more = nodes.client();
        let file = more.client.open_file(sound.path().join("many0"), OpenOptions::read());
        drop((file.expect("sound"), more));
    }
    drop(session);
    everything_works(&mut other, sound.path(), 3);
    sick.set(Rules::default());
    eventually("only one session is left", || (nodes.alpha.number("sessions") == 1).then_some(()));
}

#[expect(clippy::disallowed_methods, reason = "one test is about ten seconds")]
fn now() -> Instant {
    Instant::now()
}
