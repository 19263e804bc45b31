//! Where the time of processes goes: a look at each of their threads every quarter of a
//! millisecond of its CPU time, in user mode and in the kernel (perf, `cpu-clock`).

use std::io;
use std::time::Duration;

use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};

use crate::ab::process::{Arm, PROCESSES};
use crate::ab::{Turn, counts};
use crate::clock;
use crate::failure::{Doing as _, Failure, joined};
use crate::machine;

/// CPU time between two looks at a thread, in nanoseconds: 4 kHz, but not in step with timers that
/// have round periods.
pub(super) const PERIOD: u64 = 250_007;

/// Bytes of the stack that are kept of a look: enough to find who called a function of a library.
const STACK_BYTES: u32 = 512;

/// Memory between the kernel and this program for each thread and CPU, in bytes: a tenth of a
/// second of looks at least.
const BUFFER_BYTES: usize = 512 << 10;

/// Time between two looks into that memory.
const PAUSE: Duration = Duration::from_millis(10);

/// First of the numbers that stand among addresses and are none.
const MARKS: u64 = (-4095_i64).cast_unsigned();

/// One look at a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sample {
    pub(crate) in_kernel: bool,
    /// Address in user mode, of the call if it is in the kernel; none for threads of the kernel.
    pub(crate) address: Option<u64>,
    /// Words of the stack, the newest first.
    pub(crate) stack: Vec<u64>,
}

/// Looks at some processes.
pub(super) struct Looks {
    /// Samplers with the place of their process.
    samplers: Vec<(usize, Sampler)>,
    found: [Vec<Sample>; PROCESSES.len()],
}

impl Looks {
    /// Prepares to look at processes.
    ///
    /// # Errors
    /// The kernel does not permit it, or does not have it.
    pub(super) fn prepare(processes: [u32; PROCESSES.len()]) -> Result<Self, Failure> {
        let mut samplers = Vec::new();
        for (place, process) in processes.into_iter().enumerate() {
            for thread in counts::threads(process)? {
                for cpu in machine::allowed_cpus() {
                    match sampler(thread, cpu) {
                        Ok(sampler) => samplers.push((place, sampler)),
                        // The thread ended in the meantime.
                        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                        Err(error) => {
                            let fix = "; run this as root, or see kernel.perf_event_paranoid";
                            return Err(Failure::new(format!("cpu-clock: {error}{fix}")));
                        }
                    }
                }
            }
        }
        Ok(Self { samplers, found: Default::default() })
    }

    /// Looks while the arm does a task. Returns what that took, and the samples of each process.
    pub(super) fn during(
        mut self,
        arm: &mut Arm,
        task: &str,
        seconds: f64,
    ) -> Result<(Turn, [Vec<Sample>; PROCESSES.len()]), Failure> {
        self.enable()?;
        let turn = std::thread::scope(|scope| {
            let asking = scope.spawn(|| arm.turn(task, seconds, false));
            while !asking.is_finished() {
                clock::pause(PAUSE);
                self.take();
            }
            joined(asking.join(), "the thread that asks")
        })?;
        for (_, sampler) in &mut self.samplers {
            sampler.as_counter_mut().disable().doing("cpu-clock")?;
        }
        self.take();
        Ok((turn, self.found))
    }

    fn enable(&mut self) -> Result<(), Failure> {
        let mut samplers = self.samplers.iter_mut();
        samplers.try_for_each(|(_, sampler)| sampler.as_counter_mut().enable()).doing("cpu-clock")
    }

    fn take(&mut self) {
        for (place, sampler) in &mut self.samplers {
            while let Some(record) = sampler.next_record() {
                let Ok(Record::Sample(sample)) = record.parse_record() else { continue };
                let words = sample.stack_user().unwrap_or_default().chunks_exact(8);
                let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 of them"));
                self.found[*place].push(Sample {
                    in_kernel: sample.ip().is_some_and(|address| address.cast_signed() < 0),
                    address: sample
                        .callchain()
                        .and_then(|chain| chain.iter().find(|address| **address < MARKS).copied()),
                    stack: words.map(word).collect(),
                });
            }
        }
    }
}

fn sampler(thread: libc::pid_t, cpu: usize) -> io::Result<Sampler> {
    let mut builder = Builder::new(Software::CPU_CLOCK);
    builder
        .observe_pid(thread)
        // Threads to come count as well, and then the kernel wants a buffer for each CPU.
        .one_cpu(cpu)
        .inherit(true)
        .exclude_kernel(false)
        .exclude_callchain_kernel(true)
        .sample_period(PERIOD)
        .sample(SampleFlag::IP | SampleFlag::CALLCHAIN | SampleFlag::STACK_USER);
    let attributes = builder.attrs_mut();
    attributes.sample_stack_user = STACK_BYTES;
    // Frame pointers are not kept, so only the first address is true.
    attributes.sample_max_stack = 1;
    builder.build()?.sampled(BUFFER_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::process_cpu_time;

    #[test]
    fn looks_come_to_the_cpu_time_and_have_addresses() {
        let here = std::process::id();
        let mut looks = match Looks::prepare([here, here, here]) {
            Ok(looks) => looks,
            Err(failure) => return println!("skipped: {failure}"),
        };
        looks.enable().expect("it was prepared");
        let time = || process_cpu_time(here).expect("it runs");
        let begun = time();
        while time() - begun < Duration::from_millis(100) {}
        looks.take();
        // Other tests may work meanwhile, and this one may not be the only thread.
        for found in &looks.found {
            assert!(found.len() > 40, "{} looks", found.len());
            assert!(found.iter().any(|it| !it.in_kernel && it.address.is_some()), "{found:?}");
            let with_stack = |it: &&Sample| it.in_kernel && !it.stack.is_empty();
            assert!(found.iter().any(|it| with_stack(&it)), "the clock is read in the kernel");
        }
    }
}
