//! A breakpoint of the CPU, in the registers of one thread: no byte of the program changes, and its
//! other threads pass.

use nix::sys::ptrace;
use nix::unistd::Pid;

/// A breakpoint that is set.
#[derive(Debug)]
pub(super) struct Breakpoint(Pid);

impl Breakpoint {
    /// Stops a thread, which is stopped now, before it executes what is at `address`.
    ///
    /// # Errors
    /// The machine has no such registers for it.
    pub(super) fn set(thread: Pid, address: u64) -> nix::Result<Self> {
        write(thread, ADDRESS, address.cast_signed())?;
        write(thread, CONTROL, FIRST_IS_ON)?;
        Ok(Self(thread))
    }

    /// Takes it away; the thread is stopped again.
    pub(super) fn clear(self) -> nix::Result<()> {
        write(self.0, CONTROL, 0)
    }
}

/// Register with the first address.
const ADDRESS: usize = 0;

/// Register that says which addresses count.
const CONTROL: usize = 7;

/// The first address counts, for execution.
const FIRST_IS_ON: i64 = 1;

#[cfg(target_arch = "x86_64")]
fn write(thread: Pid, register: usize, value: i64) -> nix::Result<()> {
    let offset = std::mem::offset_of!(libc::user, u_debugreg) + 8 * register;
    ptrace::write_user(thread, std::ptr::without_provenance_mut(offset), value)
}

/// Other CPUs are not stepped.
#[cfg(not(target_arch = "x86_64"))]
fn write(_: Pid, _: usize, _: i64) -> nix::Result<()> {
    Err(nix::errno::Errno::ENOSYS)
}
