//! Which file systems are served, and who ends their operations.
//!
//! Some file systems have no files: the kernel makes up what is read (procfs, sysfs, cgroups,
//! debugfs) or does something with what is written, and asks there who reads or writes *now*. That
//! is the daemon, whoever opened the file: `/proc/PID/stat` of the daemon, read by the daemon, has
//! its addresses. So only file systems that keep bytes are served. Which those are is not asked of
//! a list of the others, which grows with every kernel: what lies on a device of its own keeps
//! bytes, and of the file systems without one those that are known to.

use std::fmt;
use std::os::fd::AsFd;

use piped_control::fault::OpenFault;

use super::file::io;

/// The party that completes the operations of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    /// The kernel of this machine, with its own devices or memory.
    Kernel,
    /// Another program or machine, or something below that may be one.
    Others,
}

/// The major number of devices that are none: what is mounted from nothing, from another machine,
/// from many devices.
const NO_DEVICE: u32 = 0;

/// File systems (magic numbers of `statfs`) that this kernel serves from its own devices or memory.
const OWN: [u32; 11] = [
    0x0000_ef53, // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // zfs
    0xca45_1a4e, // bcachefs
    0x9584_58f6, // hugetlbfs
    0xe0f5_e1e2, // erofs
    0x7371_7368, // squashfs
];

/// Magic numbers of file systems that keep bytes without a device of this kernel. They use another
/// machine, a program, a hypervisor, flash memory or another file system. From the list of GNU
/// `stat`.
const OTHERS: [u32; 27] = [
    0x794c_7630, // overlayfs
    0x6573_5546, // FUSE, virtiofs
    0x0000_6969, // NFS
    0x00c3_6400, // Ceph
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x0000_517b, // SMB
    0x0102_1997, // 9p
    0x5346_414f, // AFS
    0x6b41_4653, // AFS, the kernel's
    0x5346_4846, // WSL
    0x7375_7245, // Coda
    0x0bd0_0bd0, // Lustre
    0x4750_4653, // GPFS
    0x1983_0326, // BeeGFS
    0x2003_0528, // OrangeFS
    0xaad7_aaea, // PanFS
    0xbeef_dead, // StorNext
    0x0131_11a8, // IBRIX
    0x6163_6673, // ACFS
    0x786f_4256, // vboxsf
    0xbacb_acbc, // vmhgfs
    0x7c7c_6673, // Parallels
    0x0000_f15f, // eCryptfs
    0x6175_6673, // aufs
    0x2405_1905, // UBIFS
    0x0000_72b6, // JFFS2
];

/// Names of those that have no files, for the one who is refused.
const MADE_UP: [(u32, &str); 20] = [
    (0x0000_9fa0, "procfs"),
    (0x6265_6572, "sysfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x7363_6673, "securityfs"),
    (0xcafe_4a11, "bpf"),
    (0x6265_6570, "configfs"),
    (0xde5e_81e4, "efivarfs"),
    (0xf97c_ff8c, "selinuxfs"),
    (0x4341_5d53, "smackfs"),
    (0x0000_1cd1, "devpts"),
    (0x4249_4e4d, "binfmt_misc"),
    (0x6573_5543, "fusectl"),
    (0x6e73_6673, "nsfs"),
    (0x1980_0202, "mqueue"),
    (0x6165_676c, "pstore"),
    (0x5345_434d, "secretmem"),
    (0x0904_1934, "anonymous inodes"),
];

/// A magic number, with its name if it is a known one.
struct Kind(u32);

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match MADE_UP.iter().find(|(magic, _)| *magic == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "type {:#x}", self.0),
        }
    }
}

/// Which party serves the file system of a file (or of its directory) on a device with this major
/// number.
///
/// # Errors
/// The file system is not known to keep bytes.
pub(super) fn check(file: impl AsFd, major: u32) -> Result<Server, OpenFault> {
    let facts = rustix::fs::fstatfs(file).map_err(|error| io("statfs", error))?;
    // The type of the field differs between machines; the numbers have 32 bits.
    of(facts.f_type as u32, major)
}

fn of(magic: u32, major: u32) -> Result<Server, OpenFault> {
    if OWN.contains(&magic) {
        return Ok(Server::Kernel);
    }
    if major != NO_DEVICE || OTHERS.contains(&magic) {
        return Ok(Server::Others);
    }
    Err(OpenFault::denied(format!(
        "it lies on a file system ({}) that is not known to keep bytes: what the kernel makes up \
         for whoever reads is not read for others; pass a copy of the file",
        Kind(magic)
    )))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::linux::fs::MetadataExt as _;

    use piped_core::status::Status;

    use super::*;

    #[test]
    fn what_keeps_bytes_is_served_and_what_makes_them_up_is_not() {
        assert_eq!(of(0xef53, 254), Ok(Server::Kernel));
        assert_eq!(of(0x9123_683e, 0), Ok(Server::Kernel), "btrfs has no device of its own");
        assert_eq!(of(0x0102_1994, 0), Ok(Server::Kernel));
        assert_eq!(of(0x4d44, 8), Ok(Server::Others), "a FAT on a disk");
        assert_eq!(of(0x1234_5678, 8), Ok(Server::Others), "nobody knows it, but it has a disk");
        assert_eq!(of(0x6969, 0), Ok(Server::Others));
        for (magic, name) in MADE_UP {
            let fault = of(magic, NO_DEVICE).expect_err(name);
            assert_eq!(fault.status, Status::Denied);
            assert!(fault.text.contains(name), "{fault}");
            assert!(!fault.text.contains("  "), "{fault}");
        }
        let fault = of(0x1234_5678, NO_DEVICE).expect_err("nobody knows it");
        assert!(fault.text.contains("0x12345678"), "{fault}");
    }

    #[test]
    fn a_list_says_nothing_of_what_another_one_says() {
        for magic in OWN {
            assert!(!OTHERS.contains(&magic), "{magic:#x}");
        }
        for (magic, name) in MADE_UP {
            assert!(!OWN.contains(&magic) && !OTHERS.contains(&magic), "{name}");
        }
    }

    #[test]
    fn this_kernels_own_are_told_from_its_files() {
        for (path, is_served) in [
            ("/proc/self/maps", false),
            ("/proc/self/stat", false),
            ("/sys/kernel/mm/transparent_hugepage/enabled", false),
            (concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), true),
        ] {
            let Ok(file) = File::open(path) else { continue };
            let device = file.metadata().expect("there").st_dev();
            let found = check(&file, rustix::fs::major(device));
            assert_eq!(found.is_ok(), is_served, "{path}: {found:?}");
        }
    }
}
