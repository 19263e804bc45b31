//! Work of a process during a measurement: CPU time and, if the CPU counts them, instructions and
//! cycles.
//!
//! Only user mode is counted, because that is the code of the build. The kernel is the same for
//! both builds, and does part of io_uring's work in threads of its own.

use std::fs;
use std::io;
use std::time::Duration;

use perf_event::events::{Event, Hardware};
use perf_event::{Builder, Counter};

use crate::failure::{Doing as _, Failure};
use crate::raw::process_cpu_time;

/// Counts of one process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Counts {
    pub(crate) cpu_seconds: f64,
    /// Instructions and cycles, if they were counted.
    pub(crate) hardware: Option<[f64; 2]>,
}

/// Reason why the CPU's counters cannot be read; none if they can.
pub(crate) fn missing() -> Option<String> {
    let error = builder(Hardware::INSTRUCTIONS).observe_self().build().err()?;
    let fix = match error.kind() {
        io::ErrorKind::PermissionDenied => "; see kernel.perf_event_paranoid",
        _ => "; many virtual machines have none",
    };
    Some(format!("{error}{fix}"))
}

/// A process that is being watched.
#[derive(Debug)]
pub(super) struct Watch {
    process: u32,
    before: Duration,
    counters: Option<[Vec<Counter>; 2]>,
}

impl Watch {
    /// Begins to count, instructions and cycles only `with_hardware`.
    pub(super) fn begin(process: u32, with_hardware: bool) -> Result<Self, Failure> {
        let counters = match with_hardware {
            true => Some([
                of_all_threads(process, builder(Hardware::INSTRUCTIONS))?,
                of_all_threads(process, builder(Hardware::CPU_CYCLES))?,
            ]),
            false => None,
        };
        Ok(Self { process, before: cpu_time(process)?, counters })
    }

    pub(super) fn end(self) -> Result<Counts, Failure> {
        let hardware = match self.counters {
            Some([instructions, cycles]) => Some([sum(instructions)?, sum(cycles)?]),
            None => None,
        };
        let cpu_seconds = cpu_time(self.process)?.saturating_sub(self.before).as_secs_f64();
        Ok(Counts { cpu_seconds, hardware })
    }
}

fn cpu_time(process: u32) -> Result<Duration, Failure> {
    process_cpu_time(process).ok_or_else(|| Failure::new(format!("process {process} is gone")))
}

/// A counter of user mode, of threads that there are and of those that they begin.
pub(crate) fn builder(event: impl Event) -> Builder<'static> {
    let mut builder = Builder::new(event);
    builder.any_cpu().inherit(true).exclude_kernel(true).exclude_hv(true).enabled(true);
    builder
}

/// Opens a counter for each thread of the process, because the kernel counts threads.
pub(crate) fn of_all_threads(
    process: u32,
    mut builder: Builder<'_>,
) -> Result<Vec<Counter>, Failure> {
    let mut counters = Vec::new();
    for thread in threads(process)? {
        match builder.observe_pid(thread).build() {
            Ok(counter) => counters.push(counter),
            // The thread ended in the meantime.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(Failure::new(format!("a counter: {error}"))),
        }
    }
    Ok(counters)
}

/// Numbers of the threads of a process.
pub(crate) fn threads(process: u32) -> Result<Vec<libc::pid_t>, Failure> {
    let mut threads = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task")).doing("threads")? {
        let name = thread?.file_name();
        threads.extend(name.to_str().and_then(|name| name.parse::<libc::pid_t>().ok()));
    }
    Ok(threads)
}

/// Sum of the counters. If they shared the CPU's registers in turn, it is scaled to the whole time.
pub(crate) fn sum(counters: Vec<Counter>) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for mut counter in counters {
        let data = counter.read_full().doing("a counter")?;
        let there = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64();
        let (enabled, running) = (there(data.time_enabled()), there(data.time_running()));
        let share = if running > 0.0 { enabled / running } else { 1.0 };
        sum += data.count() as f64 * share;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use perf_event::events::Software;

    use super::*;

    const PAGES: usize = 200;

    /// Causes page faults, which every machine counts.
    fn touch_new_pages() {
        let mut memory = memmap2::MmapMut::map_anon(PAGES * 4096).expect("memory");
        memory.advise(memmap2::Advice::NoHugePage).expect("pages of 4 KiB");
        for page in memory.chunks_mut(4096) {
            page[0] = 1;
        }
    }

    #[test]
    fn threads_that_there_are_and_threads_to_come_are_counted() {
        let (begin, begun) = channel::<()>();
        let (end, ended) = channel::<()>();
        let there = std::thread::spawn(move || {
            begun.recv().expect("it begins");
            touch_new_pages();
            std::thread::spawn(touch_new_pages).join().expect("no panic");
            end.send(()).expect("it is waited for");
            // The thread lives until it has been counted.
            begun.recv().unwrap_err();
        });
        let counters = match of_all_threads(std::process::id(), builder(Software::PAGE_FAULTS)) {
            Ok(counters) => counters,
            Err(failure) => {
                println!("skipped: {failure}");
                drop(begin);
                let _ = there.join();
                return;
            }
        };
        begin.send(()).expect("it waits");
        ended.recv().expect("it ends");
        let faults = sum(counters).expect("they count");
        assert!(faults >= 2.0 * PAGES as f64, "{faults} faults");
        drop(begin);
        there.join().expect("no panic");
    }

    #[test]
    fn a_process_that_is_gone_is_named() {
        let failure = Watch::begin(0, false).expect_err("nobody has number 0");
        assert_eq!(failure.to_string(), "process 0 is gone");
    }

    #[test]
    fn this_process_takes_time() {
        let watch = Watch::begin(std::process::id(), missing().is_none()).expect("it is here");
        touch_new_pages();
        let counts = watch.end().expect("it is here");
        assert!(counts.cpu_seconds > 0.0);
        assert!(counts.hardware.is_none_or(|counts| counts.iter().all(|count| *count > 0.0)));
    }
}
