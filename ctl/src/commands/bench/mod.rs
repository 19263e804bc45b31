//! `pipectl bench`: requests of one kind, at one depth, for a time.
//!
//! One thread and one queue, like one thread of an application. The daemon does not know that it is
//! measured.

use std::time::Duration;

use piped_client::{Client, ClientBuilder, WaitPolicy};
use piped_config::admin::{STATUS, Status};

use crate::admin::Admin;
use crate::args::{Args, Load, Operation, Wait};
use crate::client;
use crate::commands::bench::drive::Driver;
use crate::commands::bench::report::{Report, Subject};
use crate::failure::Failure;
use crate::output::{self, Output, Progress};

mod cpu;
mod drive;
mod report;
mod target;

/// The arena has room for outstanding requests, and for what the allocator's order wastes.
const ARENA_BYTES_MIN: u64 = 16 << 20;

pub(crate) fn run(args: &Args, operation: &Operation, output: &Output) -> Result<(), Failure> {
    let load = load_of(operation);
    if let Some(cpu) = load.cpu {
        pin(cpu)?;
    }
    let client = connect(load)?;
    let target = target::open(&client, operation)?;
    let daemon = daemon_pid(args);
    let progress = Progress::new(!args.json);
    progress.say(format_args!("measuring {} for {} s", target.name, load.seconds));
    let subject = Subject { operation: target.operation, target: target.name.clone() };
    let mut driver = Driver::new(&client, target, load)?;
    let measured = driver.run(Duration::from_secs_f64(load.seconds), daemon.as_deref())?;
    progress.clear();
    let report = Report::new(subject, load, &measured.counts, measured.time, measured.cpu);
    if args.json { output::json(&report) } else { report.print(output) }
}

const fn load_of(operation: &Operation) -> &Load {
    match operation {
        Operation::Nop(load)
        | Operation::Read { load, .. }
        | Operation::Write { load, .. }
        | Operation::Get { load, .. }
        | Operation::Put { load, .. }
        | Operation::Copy { load, .. } => load,
    }
}

fn connect(load: &Load) -> Result<Client, Failure> {
    let arena = (load.size.0.next_multiple_of(4096) * u64::from(load.depth)).max(ARENA_BYTES_MIN);
    let mut builder = ClientBuilder::new().arena_bytes(arena).depth(load.depth);
    if let Some(wait) = load.wait {
        builder = builder.wait(match wait {
            Wait::Balanced => WaitPolicy::Balanced,
            Wait::Latency => WaitPolicy::Latency,
            Wait::Throughput => WaitPolicy::Throughput,
        });
    }
    client::connect(builder, &load.door.socket)
}

/// Process of the daemon, to read its CPU time. A daemon with an admin socket closed to this user
/// can be measured without it.
fn daemon_pid(args: &Args) -> Option<String> {
    let status = Admin::new(&args.socket).and_then(|admin| admin.get::<Status>(STATUS));
    status.ok().map(|status| status.pid.to_string())
}

fn pin(number: u32) -> Result<(), Failure> {
    use rustix::thread::{CpuSet, sched_setaffinity};

    let place = usize::try_from(number).ok().filter(|&cpu| cpu < CpuSet::MAX_CPU);
    let place =
        place.ok_or_else(|| Failure::usage(format!("--cpu {number}: there is no such CPU")))?;
    let mut set = CpuSet::new();
    set.set(place);
    sched_setaffinity(None, &set).map_err(|error| {
        Failure::usage(format!(
            "--cpu {number}: {error}; `nproc` and taskset -p $$ show what may be used"
        ))
    })
}
