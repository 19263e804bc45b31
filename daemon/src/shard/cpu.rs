//! The CPU that a shard stays on.
//!
//! Two spinning shards on one CPU are worse than no pinning at all, also if they belong to two
//! daemons. So a shard claims its CPU: it binds an abstract unix socket with the CPU's name, which
//! the kernel gives to one process at a time and frees when that process ends. A shard that finds
//! no free CPU is not pinned. The claim is a courtesy among daemons of one network namespace and no
//! protection: another program can keep us from pinning.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::thread::CpuSet;

/// A CPU that is claimed as long as this lives.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) cpu: u32,
    _name: Option<UnixListener>,
}

/// CPUs that this thread may run on.
#[must_use]
pub(crate) fn allowed() -> Vec<u32> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u32).collect()
}

/// Claims a CPU for a shard: the configured one, or a free one. The highest comes first, because
/// the lowest ones serve most interrupts.
pub(super) fn claim(configured: Option<u32>, allowed: &[u32]) -> Option<Claim> {
    if let Some(cpu) = configured {
        // The operator's choice counts more than another daemon's claim.
        return Some(Claim { cpu, _name: bind(cpu) });
    }
    allowed.iter().rev().find_map(|&cpu| Some(Claim { cpu, _name: Some(bind(cpu)?) }))
}

fn bind(cpu: u32) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("piped-cpu-{cpu}")).ok()?;
    UnixListener::bind_addr(&name).ok()
}

/// Keeps the calling thread on one CPU.
pub(super) fn pin(cpu: u32) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    if cpu as usize >= CpuSet::MAX_CPU {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    set.set(cpu as usize);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_cpu_is_claimed_once_and_free_again_afterwards() {
        // No machine has these numbers, so daemons on this one are not disturbed.
        let base = 1_000_000 + std::process::id() % 1_000_000 * 10;
        let cpus = [base, base + 1];
        let first = claim(None, &cpus).expect("both are free");
        assert_eq!(first.cpu, base + 1, "the highest first");
        let second = claim(None, &cpus).expect("one is free");
        assert_eq!(second.cpu, base);
        assert!(claim(None, &cpus).is_none());
        assert_eq!(claim(Some(base), &cpus).expect("configured").cpu, base);
        drop(first);
        assert_eq!(claim(None, &cpus).expect("free again").cpu, base + 1);
    }

    #[test]
    fn a_pinned_thread_stays_there() {
        let all = allowed();
        let cpu = *all.last().expect("this thread runs somewhere");
        let there = std::thread::spawn(move || {
            pin(cpu).expect("an allowed CPU");
            allowed()
        });
        assert_eq!(there.join().expect("it only pins itself"), vec![cpu]);
        assert!(pin(u32::MAX).is_err());
    }
}
