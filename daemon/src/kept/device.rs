//! Names of devices that outlive a boot.
//!
//! A device's number is given in the order in which the kernel finds devices, and another one after
//! another boot; file systems that have none of their own (btrfs, overlays, tmpfs) get one as they
//! are mounted. What costs time is the device, so it is named by what its maker wrote into it, as
//! the kernel shows it: `wwid` and serial numbers of disks, the uuid of a mapped device, and the
//! partition. What says nothing of itself (many virtual disks) is named by the id of the file
//! system on it, which for ext4, btrfs and f2fs comes from its uuid; it is what `stat -f` prints.
//! XFS makes that id of the device's number, and what has neither has only the number: then a name
//! may mean another device after a boot, whose samples soon say so.
//!
//! *Rejected:* /dev/disk/by-id and by-uuid, which a program outside the kernel makes, and which
//! containers lack.

use std::fs;
use std::path::Path;

use piped_core::ids::DeviceId;
use piped_report::shard::device_name;

/// The directory in which the kernel shows its devices.
const SYSFS: &str = "/sys/dev/block";

/// Attributes of a disk that tell it from all others, the best first.
const MARKS: [&str; 5] = ["dm/uuid", "wwid", "device/wwid", "serial", "device/serial"];

/// Longer marks are cut.
const MARK_BYTES_MAX: usize = 160;

/// The name of a device with a file system of this id (0: it has none). Reads files of the kernel,
/// and one of them may ask the device.
pub(super) fn stable_name(device: DeviceId, file_system: u64) -> String {
    let number = device_name(device);
    marked(&Path::new(SYSFS).join(&number)).unwrap_or_else(|| match file_system {
        0 => format!("number {number}"),
        id => format!("file system {id:016x}"),
    })
}

/// The name of a device from what its maker wrote.
fn marked(block: &Path) -> Option<String> {
    let partition = read(&block.join("partition"));
    let disk = if partition.is_some() { block.join("..") } else { block.to_owned() };
    let (kind, mark) = MARKS.iter().find_map(|kind| Some((kind, read(&disk.join(kind))?)))?;
    let kind = kind.rsplit('/').next().unwrap_or(kind);
    Some(match partition {
        Some(partition) => format!("{kind} {mark} partition {partition}"),
        None => format!("{kind} {mark}"),
    })
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    let words = text[..text.len().min(MARK_BYTES_MAX)].split(|byte| !byte.is_ascii_graphic());
    let words = words.filter(|word| !word.is_empty()).map(String::from_utf8_lossy);
    let text = words.collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_by_what_its_maker_wrote() {
        let directory = tempfile::tempdir().expect("a directory");
        let disk = directory.path().join("nvme0n1");
        let partition = disk.join("nvme0n1p2");
        fs::create_dir_all(&partition).expect("made");
        assert_eq!(marked(&disk), None);
        fs::write(disk.join("serial"), " S4EV\0 NF0\n").expect("written");
        assert_eq!(marked(&disk), Some("serial S4EV NF0".to_owned()));
        fs::write(disk.join("wwid"), "eui.0025385b\n").expect("written");
        fs::write(partition.join("partition"), "2\n").expect("written");
        assert_eq!(marked(&partition), Some("wwid eui.0025385b partition 2".to_owned()));
        fs::write(disk.join("wwid"), "\n").expect("written");
        assert_eq!(marked(&disk), Some("serial S4EV NF0".to_owned()), "an empty mark is none");
    }

    #[test]
    fn what_says_nothing_of_itself_is_named_by_its_file_system() {
        // No block device has the major number 0.
        let device = DeviceId(0x2a);
        assert_eq!(stable_name(device, 0xef53), "file system 000000000000ef53");
        assert_eq!(stable_name(device, 0), "number 0:42");
    }
}
