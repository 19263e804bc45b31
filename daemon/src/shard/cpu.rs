//! The CPU that a shard stays on, and the NUMA node that it is of.
//!
//! Two spinning shards on one CPU are worse than no pinning at all, also if they belong to two
//! daemons. So a shard claims its CPU: it binds an abstract unix socket with the CPU's name, which
//! the kernel gives to one process at a time and frees when that process ends. A shard that finds
//! no free CPU is not pinned. The claim is a courtesy among daemons of one network namespace and no
//! protection: another program can keep us from pinning.
//!
//! Where the machine has several NUMA nodes, shards go from one to the next, so that memory that a
//! shard touches first, its staging, is spread over them.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use rustix::thread::CpuSet;

/// Place where the kernel says which nodes there are.
pub(super) const SYSFS: &str = "/sys/devices/system/node";

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

/// NUMA nodes of this machine, each with its CPUs. None where the kernel does not say.
pub(super) fn nodes(sysfs: &Path) -> Vec<(u32, Vec<u32>)> {
    let Ok(entries) = fs::read_dir(sysfs) else { return Vec::new() };
    let node = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
        Some((number, cpus_of(&list)?)).filter(|(_, cpus)| !cpus.is_empty())
    };
    let mut nodes: Vec<_> = entries.flatten().filter_map(node).collect();
    nodes.sort_unstable();
    nodes
}

/// CPUs of a list such as `0-3,8`.
fn cpus_of(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // More than the kernel can have is not what it says.
        cpus.extend(first..=last.min(CpuSet::MAX_CPU as u32));
    }
    Some(cpus)
}

/// Node of a CPU, if there are several.
pub(super) fn node_of(cpu: u32, nodes: &[(u32, Vec<u32>)]) -> Option<u32> {
    let of = nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map(|(node, _)| *node);
    of.filter(|_| nodes.len() > 1)
}

/// Allowed CPUs in the order of claims, the last first: those of the shard's own node are at the
/// end.
pub(super) fn in_order(allowed: Vec<u32>, nodes: &[(u32, Vec<u32>)], shard: usize) -> Vec<u32> {
    let mut cpus = allowed;
    let usable: Vec<&Vec<u32>> = nodes
        .iter()
        .map(|(_, of)| of)
        .filter(|of| cpus.iter().any(|cpu| of.contains(cpu)))
        .collect();
    if usable.len() > 1 {
        let own = usable[shard % usable.len()];
        // Stable: the order within each part stays.
        cpus.sort_by_key(|cpu| own.contains(cpu));
    }
    cpus
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
    fn shards_go_from_node_to_node_and_one_node_changes_nothing() {
        let sysfs = tempfile::tempdir().expect("a directory");
        for (node, list) in [("node0", "0-2,8\n"), ("node1", "3-5\n"), ("node2", "\n")] {
            fs::create_dir(sysfs.path().join(node)).expect("made");
            fs::write(sysfs.path().join(node).join("cpulist"), list).expect("written");
        }
        fs::write(sysfs.path().join("online"), "0-1").expect("written");
        let nodes = nodes(sysfs.path());
        assert_eq!(nodes, [(0, vec![0, 1, 2, 8]), (1, vec![3, 4, 5])]);
        let allowed = || vec![1, 2, 3, 4, 8];
        assert_eq!(in_order(allowed(), &nodes, 0), [3, 4, 1, 2, 8]);
        assert_eq!(in_order(allowed(), &nodes, 1), [1, 2, 8, 3, 4]);
        assert_eq!(in_order(allowed(), &nodes, 2), in_order(allowed(), &nodes, 0));
        assert_eq!(
            (node_of(4, &nodes), node_of(8, &nodes), node_of(7, &nodes)),
            (Some(1), Some(0), None)
        );
        let one = &nodes[..1];
        assert_eq!((in_order(allowed(), one, 1), node_of(1, one)), (allowed(), None));
        assert_eq!(in_order(vec![1, 2], &nodes, 1), [1, 2], "only one may be used");
        assert!(super::nodes(&sysfs.path().join("nowhere")).is_empty());
        assert_eq!((cpus_of("x"), cpus_of("1-")), (None, None));
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
