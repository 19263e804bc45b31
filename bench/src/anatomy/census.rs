//! What a process does with the kernel while it runs at full speed: system calls and switches.

use std::collections::HashMap;
use std::fs;
use std::io;

use perf_event::Counter;
use perf_event::events::Tracepoint;

use crate::ab::counts;
use crate::failure::{Doing as _, Failure};

/// Where the kernel says which number its event "a system call begins" has.
const EVENT: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/id";

/// Counts of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Counted {
    /// System calls; none if they cannot be counted here.
    pub(crate) calls: Option<f64>,
    pub(crate) switches: Switches,
}

/// Times that threads gave up the CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Switches {
    /// To wait for something.
    pub(crate) voluntary: u64,
    /// Because another thread had a right to it.
    pub(crate) involuntary: u64,
}

/// A process that is being counted.
pub(super) struct Census {
    process: u32,
    calls: Option<Vec<Counter>>,
    /// What each thread had when the count began.
    before: HashMap<libc::pid_t, Switches>,
}

/// Number of the kernel's event; the reason if it cannot be counted here.
pub(super) fn event() -> Result<Tracepoint, Failure> {
    let text = fs::read_to_string(EVENT).doing(EVENT)?;
    let event = Tracepoint::with_id(text.trim().parse().doing(EVENT)?);
    let mut builder = counts::builder(event);
    let built = builder.exclude_kernel(false).observe_self().build();
    built.map(|_| event).map_err(|error: io::Error| {
        Failure::new(format!("system calls: {error}; run this as root"))
    })
}

impl Census {
    /// Begins to count; system calls only if there is an event for them.
    pub(super) fn begin(process: u32, event: Option<Tracepoint>) -> Result<Self, Failure> {
        let calls = event.map(|event| {
            let mut builder = counts::builder(event);
            // The event itself is in the kernel.
            builder.exclude_kernel(false);
            counts::of_all_threads(process, builder)
        });
        Ok(Self { process, calls: calls.transpose()?, before: of_threads(process)? })
    }

    /// Ends to count. Switches of a thread that has ended in the meantime are lost, as its status
    /// is; a sum over all threads would lose those of before, too, and come to less than nothing.
    pub(super) fn end(self) -> Result<Counted, Failure> {
        let mut switches = Switches::default();
        for (thread, after) in of_threads(self.process)? {
            switches.add(after.since(self.before.get(&thread).copied().unwrap_or_default()));
        }
        let calls = self.calls.map(counts::sum).transpose()?;
        Ok(Counted { calls, switches })
    }
}

/// Switches of each thread of a process so far.
fn of_threads(process: u32) -> Result<HashMap<libc::pid_t, Switches>, Failure> {
    let switches = |thread| {
        // A thread may end in the meantime.
        let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status"));
        (thread, Switches::parse(&status.unwrap_or_default()))
    };
    Ok(counts::threads(process)?.into_iter().map(switches).collect())
}

impl Switches {
    fn add(&mut self, more: Self) {
        self.voluntary += more.voluntary;
        self.involuntary += more.involuntary;
    }

    fn parse(status: &str) -> Self {
        let figure = |name: &str| {
            let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            found.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        Self {
            voluntary: figure("voluntary_ctxt_switches"),
            involuntary: figure("nonvoluntary_ctxt_switches"),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            voluntary: self.voluntary.saturating_sub(before.voluntary),
            involuntary: self.involuntary.saturating_sub(before.involuntary),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::clock;

    #[test]
    fn switches_are_read_by_their_names() {
        let status = "Name:\ta\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(Switches::parse(status), Switches { voluntary: 12, involuntary: 3 });
        assert_eq!(Switches::parse(""), Switches::default());
    }

    #[test]
    fn sleeps_of_this_process_are_counted() {
        let event = event().map_err(|failure| println!("not counted: {failure}")).ok();
        // Another thread sleeps before the count, and ends during it.
        let (sleeps, has_slept) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let other = thread::spawn(move || {
            (0..100).for_each(|_| clock::pause(Duration::from_millis(1)));
            sleeps.send(()).expect("somebody waits for it");
            ends.recv().expect_err("nothing is sent");
        });
        has_slept.recv().expect("it is there");
        let census = Census::begin(std::process::id(), event).expect("it is here");
        for _ in 0..20 {
            clock::pause(Duration::from_millis(1));
        }
        drop(end);
        other.join().expect("it ends");
        let counted = census.end().expect("it is here");
        assert!(counted.switches.voluntary >= 20, "{counted:?}");
        assert_eq!(counted.calls.is_some(), event.is_some());
        assert!(counted.calls.is_none_or(|calls| calls >= 20.0), "{counted:?}");
    }
}
