//! In the steady state a client allocates nothing and makes no system call. Alone in its file,
//! because it brings its own allocator.

mod support;

use piped_client::{ClientBuilder, OpenOptions, Request, WaitPolicy};
use piped_ring::allocations::{Counting, of_this_thread};
use support::{Daemon, Manners};

#[global_allocator]
static COUNTING: Counting = Counting;

const DEPTH: u64 = 64;

#[test]
fn a_steady_stream_costs_no_allocation_and_no_system_call() {
    let daemon = Daemon::start(Manners::default());
    let builder = ClientBuilder::new().depth(DEPTH as u32).wait(WaitPolicy::Throughput);
    let (client, session) = daemon.pair(builder);
    let path = daemon.folder().join("file");
    std::fs::write(&path, vec![5; 100_000]).expect("a folder");
    let file = client.open_file(&path, OpenOptions::read()).expect("a file");
    let mut queue = client.queue().expect("a queue");
    let serving = session.serve(true);
    for number in 0..DEPTH {
        let buffer = client.allocate(512).expect("room");
        queue.submit_detached(Request::read(&file, number * 512, buffer)).expect("room");
    }
    let mut stream = |rounds: u64| {
        let mut ended = 0;
        while ended < rounds {
            let Some(completed) = queue.poll() else {
                std::thread::yield_now();
                continue;
            };
            ended += 1;
            let buffer = completed.result.expect("read").payload.expect("its buffer");
            let offset = ended * 512 % 90_000;
            queue.submit_detached(Request::read(&file, offset, buffer)).expect("room");
        }
        (of_this_thread(), queue.counters())
    };
    let (before, counters_before) = stream(1000);
    let (after, counters) = stream(20_000);
    assert_eq!(after - before, 0, "allocations of 20000 requests");
    assert_eq!(counters.doorbells, counters_before.doorbells, "the daemon never slept");
    assert_eq!(counters.sleeps, 0, "polling never sleeps");

    // The other way of waiting, and memory that is taken and given back for each request.
    while queue.wait(None).is_some() {}
    let mut rounds = |count: u64| {
        for _ in 0..count {
            let buffer = client.allocate(4096).expect("room");
            let pending = queue.submit_read(&file, 0, buffer).expect("room");
            drop(queue.submit_nop().expect("room"));
            assert_eq!(pending.wait(&mut queue).expect("read").bytes, 4096);
        }
        of_this_thread()
    };
    let before = rounds(100);
    assert_eq!(rounds(1000) - before, 0, "allocations of 2000 requests and 1000 cancels");
    drop((queue, file, client));
    serving.join().expect("the daemon does not panic");
}
