//! Instructions of a thread of another process, one by one.
//!
//! Where a CPU counts no instructions, the kernel can still stop a thread after each of them
//! (ptrace with single steps). That is ten thousand times slower, and exact: the addresses of all
//! instructions in user mode, in order. See decision 0148.
//!
//! An instruction that repeats itself is passed whole ([`breakpoint`]): a copy of a mebibyte would
//! be a million steps.
//!
//! The kernel knows one tracing thread, so a [`Stepper`] stays in the thread that made it. A step
//! costs a few microseconds if that thread has the CPU of the stepped one, and ten times as much
//! otherwise: pin both.

mod breakpoint;
pub(crate) mod requests;

use std::collections::HashMap;
use std::fs::{self, File};
use std::marker::PhantomData;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use self::breakpoint::Breakpoint;
use crate::clock;
use crate::failure::{Doing as _, Failure};

/// Looks at a waiting thread between which the stepper yields; then it sleeps between them.
const YIELDS: u32 = 16;

/// Sleep between two looks at a thread that waits in the kernel.
const PAUSE: Duration = Duration::from_micros(50);

/// Instructions of a thread, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    addresses: Vec<u64>,
    calls: Vec<Call>,
}

/// A system call among the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// Place of its instruction among the steps.
    pub(crate) step: usize,
    /// Number by which the kernel knows it.
    pub(crate) number: u64,
}

impl Steps {
    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    pub(crate) fn addresses(&self) -> &[u64] {
        &self.addresses
    }

    pub(crate) fn into_addresses(self) -> Vec<u64> {
        self.addresses
    }

    /// The system calls, in order.
    pub(crate) fn calls(&self) -> &[Call] {
        &self.calls
    }
}

/// A thread that is stepped. It runs on by itself when this is dropped.
#[derive(Debug)]
pub(crate) struct Stepper {
    number: Pid,
    memory: File,
    kinds: HashMap<u64, Kind>,
    state: State,
    /// Where an instruction that repeats itself ends, while it does.
    end: Option<Breakpoint>,
    steps: Steps,
    stays: PhantomData<Rc<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Stopped after a step.
    Stepped,
    /// Stopped for another reason, with a signal that is still to be delivered.
    Stopped(Option<Signal>),
    /// On its way through one instruction.
    Stepping,
    /// In a system call, which may take any time.
    Calling,
}

/// Instructions that are not stepped like all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    SystemCall,
    /// Stops after each of its repetitions, which the CPU retires as one instruction of so many
    /// bytes.
    Repeated(u64),
    Plain,
}

impl Stepper {
    /// Stops a thread, by its number.
    pub(crate) fn attach(number: u32) -> Result<Self, Failure> {
        let memory = File::open(format!("/proc/{number}/mem"));
        let number = Pid::from_raw(number.cast_signed());
        ptrace::seize(number, Options::empty()).map_err(|error| {
            let fix = match error {
                Errno::EPERM => "; run this as root, or see kernel.yama.ptrace_scope",
                _ => "",
            };
            Failure::new(format!("thread {number} cannot be traced: {error}{fix}"))
        })?;
        let mut stepper = Self {
            number,
            memory: memory?,
            kinds: HashMap::new(),
            state: State::Calling,
            end: None,
            steps: Steps::default(),
            stays: PhantomData,
        };
        ptrace::interrupt(number).doing("interrupt")?;
        stepper.wait(WaitPidFlag::__WALL)?;
        registers(number).doing("registers")?;
        Ok(stepper)
    }

    /// Steps the thread until it sleeps in the kernel and it is `over`. Returns the steps, or
    /// nothing if that takes longer than `limit`.
    pub(crate) fn run(
        &mut self,
        over: impl Fn() -> bool,
        limit: Duration,
    ) -> Result<Option<Steps>, Failure> {
        let end = clock::now() + limit;
        let mut looks = 0;
        loop {
            // The clock is read once in a while.
            let mut went_on = 0;
            while went_on < 1024 && self.advance()? {
                went_on += 1;
                looks = 0;
            }
            if clock::now() >= end {
                return Ok(None);
            }
            if went_on > 0 {
                continue;
            }
            looks += 1;
            if looks <= YIELDS {
                std::thread::yield_now();
            } else if over() && self.is_asleep() {
                return Ok(Some(std::mem::take(&mut self.steps)));
            } else {
                clock::pause(PAUSE);
            }
        }
    }

    /// Steps the thread, or waits for its step. False if it is in a system call that goes on.
    fn advance(&mut self) -> Result<bool, Failure> {
        match self.state {
            State::Stepped => self.step().map(|()| true),
            State::Stopped(signal) => {
                // The kernel may first go on with a call that it interrupted.
                self.state = State::Calling;
                ptrace::step(self.number, signal).doing("a step").map(|()| true)
            }
            State::Stepping => self.wait(WaitPidFlag::__WALL),
            State::Calling => self.wait(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG),
        }
    }

    fn wait(&mut self, flags: WaitPidFlag) -> Result<bool, Failure> {
        self.state = match waitpid(self.number, Some(flags)).doing("wait for a step")? {
            WaitStatus::StillAlive => return Ok(false),
            WaitStatus::Stopped(_, Signal::SIGTRAP) => State::Stepped,
            WaitStatus::PtraceEvent(..) => State::Stopped(None),
            WaitStatus::Stopped(_, signal) => State::Stopped(Some(signal)),
            other => return Err(Failure::new(format!("a stepped thread ended: {other:?}"))),
        };
        match self.end.take() {
            Some(end) => end.clear().map(|()| true).doing("a breakpoint"),
            None => Ok(true),
        }
    }

    fn step(&mut self) -> Result<(), Failure> {
        let Registers { address, call } = registers(self.number).doing("registers")?;
        let kind = self.kind(address)?;
        let Steps { addresses, calls } = &mut self.steps;
        if kind == Kind::SystemCall {
            calls.push(Call { step: addresses.len(), number: call });
        }
        let repeats = matches!(kind, Kind::Repeated(_));
        if !repeats || addresses.last() != Some(&address) {
            addresses.push(address);
        }
        self.end = match kind {
            Kind::Repeated(length) => Breakpoint::set(self.number, address + length).ok(),
            _ => None,
        };
        // Without a breakpoint, each repetition is a step.
        let goes_on = match self.end {
            Some(_) => ptrace::cont(self.number, None),
            None => ptrace::step(self.number, None),
        };
        goes_on.doing("a step")?;
        self.state = if kind == Kind::SystemCall { State::Calling } else { State::Stepping };
        Ok(())
    }

    fn kind(&mut self, address: u64) -> Result<Kind, Failure> {
        if let Some(kind) = self.kinds.get(&address) {
            return Ok(*kind);
        }
        let mut code = [0; 3];
        // Two bytes are an instruction at the end of memory, too.
        self.memory.read_exact_at(&mut code[..2], address).doing("an instruction")?;
        let _ = self.memory.read_exact_at(&mut code[2..], address + 2);
        let kind = kind_of(code);
        self.kinds.insert(address, kind);
        Ok(kind)
    }

    /// Whether a trap waits to be reported.
    fn has_trap(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.number));
        let status = status.unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
        let pending = pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        pending.is_some_and(|set| set & (1 << (Signal::SIGTRAP as u32 - 1)) != 0)
    }

    /// Whether it sleeps in a system call.
    fn is_asleep(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/stat", self.number)).unwrap_or_default();
        // The name of the thread, in brackets, may have anything in it.
        status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    }
}

/// Kind of the instruction that begins with these bytes.
fn kind_of(code: [u8; 3]) -> Kind {
    // Moves, comparisons, stores, loads and searches of strings.
    let is_of_strings = |code| matches!(code, 0xa4..=0xa7 | 0xaa..=0xaf);
    match code {
        [0x0f, 0x05, _] => Kind::SystemCall,
        [0xf2 | 0xf3, code, _] if is_of_strings(code) => Kind::Repeated(2),
        [0xf2 | 0xf3, 0x40..=0x4f, code] if is_of_strings(code) => Kind::Repeated(3),
        _ => Kind::Plain,
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        if !matches!(self.state, State::Stepped | State::Stopped(_)) {
            let _ = ptrace::interrupt(self.number);
            let _ = self.wait(WaitPidFlag::__WALL);
        }
        // The step over a call that was interrupted has ended, too. Its trap is still to be
        // reported, and would end the process if nobody took it.
        if self.has_trap() && ptrace::cont(self.number, None).is_ok() {
            let _ = self.wait(WaitPidFlag::__WALL);
        }
        let signal = if let State::Stopped(signal) = self.state { signal } else { None };
        let _ = ptrace::detach(self.number, signal);
    }
}

/// The registers of a stopped thread that are looked at.
struct Registers {
    /// Address of the next instruction.
    address: u64,
    /// Number of the system call, if that instruction is one.
    call: u64,
}

#[cfg(target_arch = "x86_64")]
fn registers(thread: Pid) -> nix::Result<Registers> {
    let all = ptrace::getregs(thread)?;
    Ok(Registers { address: all.rip, call: all.rax })
}

/// Other CPUs are not stepped: a stop between the two halves of an atomic operation makes it fail,
/// again and again.
#[cfg(not(target_arch = "x86_64"))]
fn registers(_: Pid) -> nix::Result<Registers> {
    Err(Errno::ENOSYS)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

    use super::*;

    const CHILD: &str = "PIPED_BENCH_STEPPED";
    const LIMIT: Duration = Duration::from_secs(60);

    /// This test program once more, which loops or copies as often as it is told.
    struct Program {
        process: Child,
        thread: u32,
        input: ChildStdin,
        output: BufReader<ChildStdout>,
    }

    impl Program {
        fn start() -> Self {
            let mut command = Command::new(std::env::current_exe().expect("it runs"));
            command.args(["--exact", "steps::tests::a_loop_has_its_instructions", "--nocapture"]);
            command.env(CHILD, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut process = command.spawn().expect("it starts");
            let input = process.stdin.take().expect("piped");
            let output = BufReader::new(process.stdout.take().expect("piped"));
            let mut program = Self { process, thread: 0, input, output };
            program.thread = program.hear();
            program
        }

        fn say(&mut self, what: &str) {
            // In one piece, so that it is read in one.
            self.input.write_all(format!("{what}\n").as_bytes()).expect("it listens");
        }

        /// The number of its next line that has one.
        fn hear(&mut self) -> u32 {
            let mut lines = self.output.by_ref().lines().map(|line| line.expect("text"));
            let found = lines.find_map(|line| line.strip_prefix("stepped ")?.parse().ok());
            found.expect("it answers")
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    fn be_stepped() {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        println!("\nstepped {thread}");
        let from = vec![1u8; 8192];
        let mut to = from.clone();
        for line in std::io::stdin().lock().lines() {
            let line = line.expect("text");
            match line.split_once(' ') {
                Some(("loop", count)) => {
                    for number in 0..count.parse::<u64>().expect("a number") {
                        black_box(number);
                    }
                }
                _ => black_box(&mut to).copy_from_slice(black_box(&from)),
            }
            println!("\nstepped 0");
        }
    }

    /// Instructions of the child while it does something, by its answer; none if they cannot be
    /// stepped here.
    fn count(program: &mut Program, what: &str) -> Option<usize> {
        let mut stepper = match Stepper::attach(program.thread) {
            Ok(stepper) => stepper,
            Err(failure) => {
                println!("skipped: {failure}");
                return None;
            }
        };
        stepper.run(|| true, LIMIT).expect("it lives").expect("it waits for a line");
        program.say(what);
        let there = std::cell::Cell::new(false);
        let read = rustix::event::PollFlags::IN;
        let over = || {
            let mut output = [rustix::event::PollFd::new(program.output.get_ref(), read)];
            let ready = rustix::event::poll(&mut output, Some(&rustix::time::Timespec::default()));
            there.set(ready.is_ok_and(|ready| ready > 0));
            there.get()
        };
        let steps = stepper.run(over, LIMIT).expect("it lives").expect("it is done soon");
        assert!(there.get());
        assert_eq!(program.hear(), 0);
        Some(steps.len())
    }

    #[test]
    fn a_loop_has_its_instructions() {
        if std::env::var_os(CHILD).is_some() {
            return be_stepped();
        }
        let mut program = Program::start();
        // The first time includes what a process does once.
        if count(&mut program, "loop 100").is_none() {
            return;
        }
        // Words of equal length, so that reading them is equal work.
        let counts = ["loop 100", "loop 300", "loop 900"]
            .map(|what| count(&mut program, what).expect("it was stepped before"));
        let body = (counts[1] - counts[0]) / 200;
        assert!((2..100).contains(&body), "{body} instructions of an iteration: {counts:?}");
        assert_eq!(counts[1] - counts[0], 200 * body, "{counts:?}");
        assert_eq!(counts[2] - counts[1], 600 * body, "{counts:?}");
    }

    #[test]
    fn a_repeated_instruction_is_one() {
        let mut program = Program::start();
        if count(&mut program, "copy").is_none() {
            return;
        }
        let copy = count(&mut program, "copy").expect("it was stepped before");
        let nothing = count(&mut program, "loop 0").expect("it was stepped before");
        let of_copy = copy as i64 - nothing as i64;
        // 8 KiB byte by byte would be 8192, and 16 bytes a time are 1024 with the loop.
        assert!(of_copy < 2000, "{copy} instructions, {nothing} without a copy");
    }

    #[test]
    fn only_what_works_on_strings_repeats_itself() {
        assert_eq!(kind_of([0x0f, 0x05, 0]), Kind::SystemCall);
        assert_eq!(kind_of([0xf3, 0xa4, 0]), Kind::Repeated(2), "rep movsb");
        assert_eq!(kind_of([0xf3, 0x48, 0xab]), Kind::Repeated(3), "rep stosq");
        assert_eq!(kind_of([0xf3, 0x0f, 0x1e]), Kind::Plain, "endbr64");
        assert_eq!(kind_of([0xf3, 0x90, 0]), Kind::Plain, "pause");
        assert_eq!(kind_of([0xf3, 0xc3, 0]), Kind::Plain, "rep ret");
    }

    #[test]
    fn a_stepped_thread_goes_on_by_itself_afterwards() {
        let mut program = Program::start();
        let Ok(mut stepper) = Stepper::attach(program.thread) else {
            return println!("skipped: no permission");
        };
        // It ends in the midst of the loop, with the thread on its way through an instruction.
        program.say("loop 100000000");
        let cut = stepper.run(|| true, Duration::from_millis(200)).expect("it lives");
        assert_eq!(cut, None);
        drop(stepper);
        assert_eq!(program.hear(), 0);
        assert!(count(&mut program, "loop 0").expect("it was stepped before") > 0);
    }

    #[test]
    fn a_thread_that_is_gone_is_named() {
        let failure = Stepper::attach(u32::MAX >> 1).expect_err("no such thread");
        assert!(failure.to_string().contains("thread 2147483647"), "{failure}");
    }
}
