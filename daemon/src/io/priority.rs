//! The priorities of file operations, which keep fragments apart.
//!
//! The block layer joins adjacent requests of one submission unless their priorities differ.
//! Joined, they would all end with the last of them, and nothing would be on its way while the
//! device still reads; the planner chose the sizes to avoid that. So neighbouring fragments get
//! different levels of the class that the operator gave the daemon (`ionice`, `IOSchedulingClass=`,
//! else by its `nice`), which schedulers hardly tell apart.

const CLASS_SHIFT: u32 = 13;
const CLASS_NONE: u16 = 0;
const CLASS_BEST_EFFORT: u16 = 2;
const CLASS_IDLE: u16 = 3;
const LEVEL_MASK: u16 = 7;

/// Priorities of even and odd fragments; 0 is that of the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Priorities([u16; 2]);

impl Priorities {
    /// Priorities around that of the calling thread.
    pub(super) fn of_this_thread() -> Self {
        const WHO_PROCESS: libc::c_int = 1;
        const SELF: libc::c_int = 0;
        // SAFETY: the call takes two numbers and touches no memory.
        let own = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, SELF) };
        let nice = rustix::process::getpriority_process(None).unwrap_or(0);
        // A refusal (-1) leaves the thread's default.
        Self::around(u16::try_from(own).unwrap_or(0), nice)
    }

    fn around(own: u16, nice: i32) -> Self {
        let (class, level) = match own >> CLASS_SHIFT {
            // The kernel does the same for a thread without a class.
            CLASS_NONE => (CLASS_BEST_EFFORT, ((nice.clamp(-20, 19) + 20) / 5) as u16),
            class => (class, own & LEVEL_MASK),
        };
        let at = |level: u16| class << CLASS_SHIFT | level;
        match class {
            // The idle class has no levels, but the block layer tells different numbers apart.
            CLASS_BEST_EFFORT | CLASS_IDLE => {
                // A level less than asked for; there is none below the lowest.
                let other = if level < LEVEL_MASK { level + 1 } else { level - 1 };
                Self([at(level), at(other)])
            }
            // Real time needs a capability for each operation that names it, and none to keep it.
            _ => Self([0, 0]),
        }
    }

    /// Priority of a fragment of a file.
    pub(super) fn of(self, offset: u64, length: u32) -> u16 {
        self.0[((offset / u64::from(length.max(1))) & 1) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn priority(class: u16, level: u16) -> u16 {
        class << CLASS_SHIFT | level
    }

    #[test]
    fn the_class_is_the_operators() {
        let be = |level| priority(2, level);
        let idle = |level| priority(3, level);
        for (own, nice, expected) in [
            // Without a class the niceness decides, as in the kernel.
            (0, 0, [be(4), be(5)]),
            (0, -20, [be(0), be(1)]),
            (0, 19, [be(7), be(6)]),
            // Beside a class the niceness does not count.
            (be(0), 19, [be(0), be(1)]),
            (be(6), 0, [be(6), be(7)]),
            (be(7), 0, [be(7), be(6)]),
            (idle(0), 0, [idle(0), idle(1)]),
            (idle(7), 0, [idle(7), idle(6)]),
            // The class is kept by naming none.
            (priority(1, 4), 0, [0, 0]),
            // Hints of newer kernels are for single operations.
            (be(2) | 1 << 3, 0, [be(2), be(3)]),
        ] {
            assert_eq!(Priorities::around(own, nice).0, expected, "{own:#x} {nice}");
        }
    }

    #[test]
    fn neighbours_differ() {
        let priorities = Priorities::around(0, 0);
        for length in [4096, 65_536, 1 << 20] {
            for number in 0..10 {
                let [one, next] =
                    [number, number + 1].map(|n| priorities.of(n * u64::from(length), length));
                assert_ne!(one, next);
            }
        }
        assert_eq!(priorities.of(0, 0), priorities.0[0]);
    }

    #[test]
    fn this_threads_is_one_that_the_kernel_takes() {
        let [even, odd] = Priorities::of_this_thread().0;
        assert!(even == 0 && odd == 0 || even != odd);
        assert!([even, odd].iter().all(|it| it >> CLASS_SHIFT <= CLASS_IDLE));
    }
}
