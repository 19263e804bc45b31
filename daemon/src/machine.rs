//! Facts about this machine: the memory that this process may have, its name, a random number.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;

/// Folders of the control groups, and the name of a group's limit there.
const CGROUPS: [(&str, &str); 2] =
    [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];

/// The most bytes of memory for this process: those of the machine, or less if a control group
/// above it has a limit. Asked at start, before the sandbox.
pub(crate) fn memory_bytes() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = paths(&groups).into_iter().flat_map(|path| {
        CGROUPS.iter().filter_map(move |(root, file)| least(Path::new(root), &path, file))
    });
    // Without an answer of the kernel no bound is known.
    limits.chain(machine).min().unwrap_or(u64::MAX)
}

/// Value of `MemTotal` in `/proc/meminfo`.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Paths of the groups in `/proc/self/cgroup` that limit memory: of version 2, and of version 1's
/// controller.
fn paths(text: &str) -> Vec<String> {
    let path = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let limits = controllers.is_empty() || controllers.split(',').any(|it| it == "memory");
        limits.then(|| path.trim_start_matches('/').to_owned())
    };
    text.lines().filter_map(path).collect()
}

/// Least limit of a group and of those above it. "max" and nothing are no limit.
fn least(root: &Path, path: &str, file: &str) -> Option<u64> {
    let group = root.join(path);
    let groups = group.ancestors().take_while(|group| group.starts_with(root));
    groups.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()).min()
}

/// A number that nobody can foretell, from the operating system by way of the standard library.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_memory_is_read_as_the_kernel_writes_it() {
        assert_eq!(total("MemTotal:       24684096 kB\nMemFree:  1 kB\n"), Some(24_684_096 << 10));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert_eq!(total("MemTotal: much\n"), None);
        assert!((1 << 20..=u64::MAX).contains(&memory_bytes()));
    }

    #[test]
    fn the_groups_of_both_versions_are_found() {
        let text =
            "12:memory,cpu:/a/b\n3:pids:/c\n1:name=systemd:/d\n0::/system.slice/piped.service\n";
        assert_eq!(paths(text), ["a/b", "system.slice/piped.service"]);
        assert!(paths("nonsense").is_empty());
    }

    #[test]
    fn the_least_limit_up_to_the_root_counts() {
        let root = tempfile::tempdir().expect("a directory");
        let group = root.path().join("slice/service");
        fs::create_dir_all(&group).expect("made");
        fs::write(group.join("memory.max"), "max\n").expect("written");
        assert_eq!(least(root.path(), "slice/service", "memory.max"), None);
        fs::write(root.path().join("slice/memory.max"), "4096\n").expect("written");
        assert_eq!(least(root.path(), "slice/service", "memory.max"), Some(4096));
        fs::write(group.join("memory.max"), "8192\n").expect("written");
        assert_eq!(least(root.path(), "slice/service", "memory.max"), Some(4096));
        assert_eq!(least(root.path(), "elsewhere", "memory.max"), None);
    }
}
