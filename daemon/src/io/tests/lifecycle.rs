use std::io::{Read as _, Write as _};
use std::sync::{Arc, Weak};

use piped_core::io::{Done, Io, Op, Resource, Spans, Token};
use piped_ring::Segment;

use super::{config, driver, filled_file, finish, open, run, segment, socket, span};
use crate::closing::{Account, Closer};
use crate::io::{OpKind, UringConfig, UringError, UringIo, clock};

#[test]
fn adding_and_releasing_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    filled_file(&path, &[7; 4096]);
    // Tables so small that a single leak per hundred rounds would fill them.
    let small = UringConfig { files_max: 3, segments_max: 2, ..config() };
    let mut io = UringIo::new(&small).unwrap();
    for round in 0..1000 {
        let file = io.add_file(open(&path, false).unwrap()).unwrap();
        let (ours, mut theirs) = socket(&mut io);
        let memory = Arc::new(Segment::create(8192).unwrap());
        let freed: Weak<Segment> = Arc::downgrade(&memory);
        let id = io.add_segment(memory).unwrap();
        if round % 2 == 0 {
            assert!(!io.poll_registration());
        }
        if round % 10 == 0 {
            let into = span(id, 0, 4096);
            assert_eq!(run(&mut io, Op::Read { file, offset: 0, into }), 4096);
        }
        io.release(Resource::Segment(id));
        io.release(Resource::Socket(ours));
        io.release(Resource::File(file));
        assert_eq!(io.holds(), (0, 0));
        assert!(freed.upgrade().is_none(), "round {round}: the segment is still there");
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "round {round}: the socket is still open");
    }
    let counters = io.counters();
    assert_eq!((counters.registered_bytes, counters.registrations_failed), (0, 0));
    assert_eq!(io.degraded(), Vec::<String>::new());
    // The kernel agrees: all places of its tables are empty.
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", io.ring.number())).unwrap();
    let section = |name: &str| {
        let rest = info.split_once(&format!("\n{name}:")).map_or("", |(_, rest)| rest);
        rest.lines().skip(1).take_while(|line| line.starts_with(' ')).map(str::to_owned)
    };
    for name in ["UserFiles", "UserBufs"] {
        assert!(info.contains(name), "{info}");
        let used: Vec<String> = section(name)
            .filter(|line| !line.contains("<none>") && !line.ends_with("0x0/0"))
            .collect();
        assert_eq!(used, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn a_full_table_is_a_typed_error() {
    let mut io = UringIo::new(&UringConfig { segments_max: 1, ..config() }).unwrap();
    segment(&mut io, 4096);
    let more = io.add_segment(Arc::new(Segment::create(4096).unwrap()));
    let error = more.expect_err("there is one place");
    assert!(matches!(error, UringError::Full { capacity: 1, .. }), "{error}");
}

#[test]
fn memory_outlives_its_release_until_the_last_operation() {
    for registered in [false, true] {
        let mut io = driver();
        let (ours, mut theirs) = socket(&mut io);
        let memory = Arc::new(Segment::create(8192).unwrap());
        let freed = Arc::downgrade(&memory);
        let id = io.add_segment(memory).unwrap();
        if registered {
            io.poll_registration();
        }
        let receive = Op::Receive {
            socket: ours,
            spans: Spans::from_iter([span(id, 0, 10), span(id, 4096, 10)]),
            whole: true,
        };
        assert!(io.push(Token(1), receive));
        io.submit().unwrap();
        io.release(Resource::Segment(id));
        assert!(freed.upgrade().is_some(), "the kernel may still write to it");
        // For new operations it is gone.
        assert!(io.push(Token(2), receive));
        assert_eq!(finish(&mut io, 1), [Done { token: Token(2), result: -libc::EFAULT }]);
        theirs.write_all(&[1; 20]).unwrap();
        assert_eq!(finish(&mut io, 1), [Done { token: Token(1), result: 20 }]);
        assert!(freed.upgrade().is_none());
        assert_eq!(io.holds().1, 0);
    }
}

#[test]
fn released_memory_goes_to_the_undertaker_after_its_last_use() {
    let (sender, buried) = std::sync::mpsc::channel();
    let mut io = driver();
    io.retire_segments_to(move |segment| sender.send(segment).unwrap());
    let (ours, _theirs) = socket(&mut io);
    let id = segment(&mut io, 8192);
    io.poll_registration();
    let spans = Spans::from_iter([span(id, 0, 10)]);
    assert!(io.push(Token(1), Op::Receive { socket: ours, spans, whole: false }));
    io.release(Resource::Segment(id));
    assert!(buried.try_recv().is_err(), "the kernel may still write to it");
    io.cancel(Token(1));
    finish(&mut io, 1);
    assert_eq!(io.counters().registered_bytes, 0);
    assert_eq!(Arc::strong_count(&buried.try_recv().unwrap()), 1);
}

#[test]
fn files_are_not_closed_here_but_leave_after_their_last_use() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    filled_file(&path, &[7; 4096]);
    let (closer, mut leaving) = Closer::new();
    let mut io = UringIo::new(&UringConfig { files_max: 3, ..config() }).unwrap();
    // Each file has an account of its own, which tells which file has left.
    let accounts = [(); 4].map(|()| Account::new(closer.clone(), 1, 1, None));
    let held =
        |account: &Arc<Account>| account.try_room(1).unwrap().hold(open(&path, false).unwrap());
    let [unused, used, kept, excess] = accounts.each_ref().map(held);
    let mut has_left = |account: &Arc<Account>| {
        assert!(account.try_room(1).is_none());
        leaving.try_recv().is_ok() && account.try_room(1).is_some()
    };
    let [unused, used, _kept] = [unused, used, kept].map(|file| io.add_file(file).unwrap());
    assert!(matches!(io.add_file(excess), Err(UringError::Full { .. })));
    assert!(has_left(&accounts[3]));
    io.release(Resource::File(unused));
    assert!(has_left(&accounts[0]));
    let memory = segment(&mut io, 4096);
    let read = Op::Read { file: used, offset: 0, into: span(memory, 0, 4096) };
    assert!(io.push(Token(1), read));
    io.release(Resource::File(used));
    assert!(!has_left(&accounts[1]), "the kernel still reads it");
    assert_eq!(finish(&mut io, 1), [Done { token: Token(1), result: 4096 }]);
    assert!(has_left(&accounts[1]));
    // Closing a socket waits for nobody: the other end sees it at once.
    let (ours, mut theirs) = socket(&mut io);
    io.release(Resource::Socket(ours));
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    drop(io);
    assert!(has_left(&accounts[2]), "the driver's end closes no file either");
}

#[test]
fn dropping_the_driver_ends_what_is_in_flight_and_frees_its_memory() {
    let mut io = driver();
    let (ours, mut theirs) = socket(&mut io);
    let memory = Arc::new(Segment::create(8192).unwrap());
    let freed = Arc::downgrade(&memory);
    let id = io.add_segment(memory).unwrap();
    io.poll_registration();
    for token in 0..100 {
        let spans = Spans::from_iter([span(id, 0, 10)]);
        assert!(io.push(Token(token), Op::Receive { socket: ours, spans, whole: true }));
    }
    let begin = clock::now();
    drop(io);
    assert!(clock::now().since(begin) < UringIo::SHUTDOWN_TIMEOUT, "it was waited for in vain");
    assert!(freed.upgrade().is_none());
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
}

#[test]
fn memory_the_kernel_does_not_give_back_is_leaked_and_not_freed() {
    let mut io = driver();
    let segments = [(); 2].map(|()| Arc::new(Segment::create(8192).unwrap()));
    let [lent, unused] = segments.each_ref().map(Arc::downgrade);
    let [lent_id, _] = segments.map(|segment| io.add_segment(segment).unwrap());
    // An operation that the kernel does not know looks like one that never ends.
    let index = io.ops.take(Token(1), OpKind::Receive).unwrap();
    io.memory.lend(span(lent_id, 0, 10)).unwrap();
    io.ops.slot(index).lend_segment(lent_id.0);
    drop(io);
    assert!(lent.upgrade().is_some());
    assert!(unused.upgrade().is_none());
}
