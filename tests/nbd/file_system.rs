//! A real file system on the device, without the kernel's NBD: nbdkit, nbdfuse, a loop device.
//!
//! All mounts are in a namespace of the script's processes, and end with them; so does the loop
//! device. But nbdfuse has to end first: a kernel that takes down a file system whose device is
//! served by a process that is ending itself waits for it, and with it everybody who calls `sync`.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::{Signal, kill_process};
use system_tests::nbd::{are_there, is_long, run};
use system_tests::process::{Running, command, eventually, words};

use super::Stage;

const TOOLS: [&str; 7] =
    ["nbdfuse", "unshare", "mount", "losetup", "mkfs.ext4", "e2fsck", "sha256sum"];

/// `nbdfuse` and the mount; what is to be done follows.
const BEGIN: &str = r#"
set -eu
uri=$1 directory=$2
cd "$directory"
mkdir -p fuse mnt
nbdfuse fuse/disk "$uri" &
fuse=$!
echo $fuse >nbdfuse.pid
trap 'kill -9 $fuse' EXIT
trap 'exit 1' TERM INT
tries=0
until [ -f fuse/disk ]; do
    tries=$((tries + 1)) && [ $tries -lt 300 ] && sleep 0.1
done
"#;

/// Files that fsx works on, one after the other, with so many operations each (in a file of many
/// more, one operation takes longer and longer), and seconds of stress-ng. `PIPED_NBD_LONG=1` has a
/// million operations.
fn effort() -> (u32, u32, u32) {
    if is_long() { (50, 20_000, 60) } else { (1, 8_000, 5) }
}

/// fsx compares each read with what it wrote, mapped and cut; then the file system is looked at.
const USE: &str = r#"
mkfs() { case $1 in ext4) mkfs.ext4 -q -F fuse/disk ;; xfs) mkfs.xfs -q -f fuse/disk ;; esac; }
check() { case $1 in ext4) e2fsck -fn fuse/disk ;; xfs) xfs_repair -n fuse/disk ;; esac; }
for type in ext4 xfs; do
    command -v mkfs.$type >/dev/null || { echo "skipped: mkfs.$type is not installed"; continue; }
    mkfs $type
    mount -o loop fuse/disk mnt
    if command -v "$FSX" >/dev/null; then
        printf 'flen = 65536\n' >fsx.toml
        for seed in $(seq $FILES); do
            "$FSX" -q -f fsx.toml -S $seed -N $OPERATIONS -P "$directory" mnt/file
            rm mnt/file
        done
        echo "fsx did $OPERATIONS operations on each of $FILES files on $type"
    else
        echo "skipped: fsx is not installed"
    fi
    if command -v stress-ng >/dev/null; then
        stress-ng --quiet --hdd 1 --hdd-bytes 64M --iomix 1 --iomix-bytes 64M --verify \
            --timeout ${SECONDS_OF_STRESS}s --temp-path mnt
        echo "stress-ng is content with $type"
    else
        echo "skipped: stress-ng is not installed"
    fi
    fstrim mnt || echo "skipped: no fstrim"
    umount mnt
    check $type
    echo "$type is clean"
done
"#;

/// Writes files, and notes each with its digest when it is synced.
const WRITE: &str = r#"
mkfs.ext4 -q -F fuse/disk
mount -o loop fuse/disk mnt
number=0
while :; do
    number=$((number + 1))
    head -c $((number * 4099)) /dev/urandom >mnt/file-$number
    sync mnt/file-$number mnt
    sha256sum mnt/file-$number >>synced
done
"#;

/// Everything that was synced is there, and the file system has no errors.
const LOOK: &str = r#"
mount -o loop fuse/disk mnt
sha256sum --quiet --check synced
umount mnt
e2fsck -fn fuse/disk
"#;

/// The script in a mount namespace of its own, for as long as a test may take.
fn script(uri: &str, directory: &Path, what: &str) -> Command {
    let mut unshare = command(Path::new("unshare"));
    unshare.args(["--mount", "--propagation", "private", "timeout", "--kill-after=10"]);
    unshare.arg(if is_long() { "7000" } else { "250" });
    unshare.args(["sh", "-c", &format!("{BEGIN}{what}"), "sh", uri]).arg(directory);
    let (files, operations, seconds) = effort();
    unshare.env("FILES", files.to_string());
    unshare.env("OPERATIONS", operations.to_string());
    unshare.env("SECONDS_OF_STRESS", seconds.to_string());
    let fsx = std::env::var_os("PIPED_TEST_FSX").unwrap_or_else(|| "fsx".into());
    unshare.env("FSX", fsx);
    unshare
}

fn may_mount() -> bool {
    let may = rustix::process::geteuid().is_root()
        && Path::new("/dev/fuse").exists()
        && Path::new("/dev/loop-control").exists();
    if !may {
        eprintln!("skipped: a mount needs root, /dev/fuse and loop devices");
    }
    may && are_there(&TOOLS)
}

#[test]
fn file_systems_on_the_device_keep_what_they_are_given() {
    let Some(stage) = Stage::set().filter(|_| may_mount()) else { return };
    let served = stage.serve_new("used", "512M");
    let mut script = script(&served.uri(), stage.directory.path(), USE);
    let output = run(&mut script);
    let told = words(&output);
    assert!(output.status.success() && told.contains("ext4 is clean"), "{told}");
    for line in told.lines().filter(|line| line.contains("skipped") || line.contains("fsx did")) {
        eprintln!("{line}");
    }
}

#[test]
fn a_file_system_has_what_was_synced_after_everything_was_killed() {
    let Some(mut stage) = Stage::set().filter(|_| may_mount()) else { return };
    let directory = stage.directory.path().to_owned();
    let synced = || fs::read_to_string(directory.join("synced")).unwrap_or_default();
    let mut served = stage.serve_new("crash", "256M");
    let script_of =
        |served: &system_tests::nbd::Served, what: &str| script(&served.uri(), &directory, what);
    let mut writes = Running(script_of(&served, WRITE).spawn().expect("started"));
    eventually("some files are synced", || (synced().lines().count() >= 40).then_some(()));
    served.process.signal(Signal::KILL);
    stage.pair.alpha.process.signal(Signal::KILL);
    stage.pair.beta.process.signal(Signal::KILL);
    let nbdfuse = fs::read_to_string(directory.join("nbdfuse.pid")).expect("it runs");
    let nbdfuse = nbdfuse.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
    // The script is its parent and waits for it only at its own end: the number is still its.
    kill_process(nbdfuse.expect("a number"), Signal::KILL).expect("it runs");
    served.process.exit();
    // What writes to the file system has errors now, and ends.
    writes.exit();
    stage.pair.beta.restart(&stage.pair.settings[1]);
    stage.pair.alpha.restart(&stage.pair.settings[0]);
    let served = stage.plugin.serve(&stage.pair.alpha, "again", &["beta:data/crash"]);
    let output = run(&mut script_of(&served, LOOK));
    assert!(output.status.success(), "{}\n{}", words(&output), synced());
}
