//! libnbd's own programs, and its library in Python.

use std::fs;
use std::os::unix::fs::FileExt as _;

use system_tests::nbd::{are_there, succeed};
use system_tests::process::{BLOCKS_BYTES, pattern};

use super::{MIB, Stage};

/// Data in some places of a file, and holes between them.
fn sparse(path: &std::path::Path, length: u64) {
    let file = fs::File::create(path).expect("made");
    file.set_len(length).expect("long enough");
    for at in [0, 3 * MIB as u64, length - 64 * 1024] {
        file.write_all_at(&pattern(64 * 1024), at).expect("written");
    }
    file.sync_all().expect("synced");
}

/// Lines of `nbdinfo --map` without what surrounds the numbers.
fn map(uri: &str) -> Vec<(u64, u64, u64)> {
    let told = succeed("nbdinfo", &["--map", uri]);
    let line = |line: &str| {
        let mut words = line.split_whitespace().map(|word| word.parse().unwrap_or(u64::MAX));
        Some((words.next()?, words.next()?, words.next()?))
    };
    told.lines().filter_map(line).collect()
}

#[test]
fn nbdinfo_says_what_there_is_and_where_the_holes_are() {
    let Some(stage) = Stage::set().filter(|_| are_there(&["nbdinfo"])) else { return };
    sparse(&stage.file("sparse"), 16 * MIB as u64);
    let served = stage.plugin.serve(&stage.pair.alpha, "sparse", &["beta:data/sparse"]);
    let told = succeed("nbdinfo", &[&served.uri()]);
    for line in [
        "export-size: 16777216 (16M)",
        "description: beta:data/sparse",
        "can_fua: true",
        "can_multi_conn: true",
        "can_fast_zero: true",
        "can_trim: true",
        "block_size_minimum: 1",
    ] {
        assert!(told.contains(line), "{line} in {told}");
    }
    let (data, hole) = (0, 3);
    let (block, all) = (64 * 1024, 16 * MIB as u64);
    let middle = 3 * MIB as u64;
    let wanted = [
        (0, block, data),
        (block, middle - block, hole),
        (middle, block, data),
        (middle + block, all - middle - 2 * block, hole),
        (all - block, block, data),
    ];
    assert_eq!(map(&served.uri()), wanted);
    // All files of the export, each by its name.
    let all = stage.plugin.serve(&stage.pair.alpha, "all", &["beta:data"]);
    let listed = succeed("nbdinfo", &["--list", &all.uri()]);
    assert!(
        listed.contains("export=\"blocks\"") && listed.contains("export=\"sparse\""),
        "{listed}"
    );
    assert_eq!(map(&all.uri_of("sparse")), wanted);
    let blocks = succeed("nbdinfo", &["--size", &all.uri_of("blocks")]);
    assert_eq!(blocks.trim(), BLOCKS_BYTES.to_string());
}

#[test]
fn nbdcopy_and_nbddump_move_bytes_and_holes_both_ways() {
    let tools = ["nbdcopy", "nbddump", "hexdump"];
    let Some(stage) = Stage::set().filter(|_| are_there(&tools[..2])) else { return };
    let (there, back) = (stage.beside("there"), stage.beside("back"));
    sparse(there.as_ref(), 40 * MIB as u64);
    let served = stage.serve_new("copied", "40M");
    let _ = succeed("nbdcopy", &["--flush", &there, &served.uri()]);
    let _ = succeed("nbdcopy", &[&served.uri(), &back]);
    let bytes = fs::read(&there).expect("there");
    assert!(fs::read(stage.file("copied")).expect("there") == bytes, "what arrived");
    assert!(fs::read(&back).expect("there") == bytes, "what came back");
    use std::os::unix::fs::MetadataExt as _;
    let room = |path: &std::path::Path| fs::metadata(path).expect("there").blocks() * 512;
    assert_eq!(room(&stage.file("copied")), room(there.as_ref()), "holes stay holes");
    assert_eq!(room(back.as_ref()), room(there.as_ref()));
    let dump = succeed("nbddump", &["--length=48", &served.uri()]);
    let first: Vec<String> = pattern(16).iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(dump.starts_with(&format!("0000000000: {}", first[..8].join(" "))), "{dump}");
}

/// What libnbd offers, beside what the file has to have then.
const SCRIPT: &str = r#"
import nbd, os, sys
uri, path, small = sys.argv[1:]
h = nbd.NBD(); h.add_meta_context("base:allocation"); h.connect_uri(uri)
assert h.get_structured_replies_negotiated()
size = h.get_size(); assert size == os.path.getsize(path) == 8 << 20
model = bytearray(size)
def check(): assert open(path, "rb").read() == model
def write(at, data, flags=0): h.pwrite(data, at, flags); model[at:at + len(data)] = data
def zero(at, count, flags=0): h.zero(count, at, flags); model[at:at + count] = bytes(count)
# Unaligned, across blocks, and as large as the server may be asked for.
write(1, b"x"); write(511, b"yz"); write(4095, bytes(range(256)) * 40); check()
write(1 << 20, os.urandom(6 << 20)); check()
assert h.pread(6 << 20, 1 << 20) == model[1 << 20:7 << 20]
assert h.pread(3, 4094) == model[4094:4097]
write(12345, b"durable", nbd.CMD_FLAG_FUA)
zero(2 << 20, 65536); zero(3 << 20, 1 << 20, nbd.CMD_FLAG_NO_HOLE)
zero(5 << 20, 65536, nbd.CMD_FLAG_FAST_ZERO)
zero(5 << 20 | 7, 5000, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
h.trim(1 << 20, 6 << 20, nbd.CMD_FLAG_FUA); model[6 << 20:7 << 20] = bytes(1 << 20)
h.flush(); h.cache(1 << 20, 0); check()
# What is asked for in pieces comes in pieces, and together it is all.
seen = bytearray(size)
def chunk(buf, offset, status, error): seen[offset:offset + len(buf)] = buf; return 0
h.pread_structured(4 << 20, 1 << 20, chunk); assert seen[1 << 20:5 << 20] == model[1 << 20:5 << 20]
extents = []
def extent(context, offset, entries, error): extents.extend(entries); return 0
h.block_status(size, 0, extent)
at, kinds = 0, {}
for length, kind in zip(extents[::2], extents[1::2]):
    if kind & nbd.STATE_ZERO: assert model[at:at + length] == bytes(length), (at, length)
    for mebibyte in range(at >> 20, at + length - 1 >> 20): kinds[mebibyte] = kind
    at += length
assert at == size
assert kinds[6] == nbd.STATE_HOLE | nbd.STATE_ZERO, kinds
# Many at once on two connections: a flush of one vouches for both.
g = nbd.NBD(); g.connect_uri(uri)
cookies = []
for i in range(64):
    data = os.urandom(4096); at = i * 8192; model[at:at + 4096] = data
    cookies.append((h, g)[i % 2].aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), at))
for i, cookie in enumerate(cookies):
    c = (h, g)[i % 2]
    while not c.aio_command_completed(cookie): c.poll(-1)
g.flush(); check()
# Beyond the end, and of a connection that may only read.
h.set_strict_mode(0)
for ask in (lambda: h.pread(512, size), lambda: h.pwrite(b"no", size - 1)):
    try: ask(); assert False
    except nbd.Error as e: assert e.errnum in (22, 28), e
r = nbd.NBD(); r.set_strict_mode(0); r.connect_uri(small)
assert r.is_read_only() and r.pread(4, 0) is not None
try: r.pwrite(b"no", 0); assert False
except nbd.Error as e: assert e.errno == "EPERM", e
print("all is well")
"#;

#[test]
fn a_script_with_every_command_finds_what_it_wrote() {
    let Some(stage) = Stage::set().filter(|_| are_there(&["/usr/bin/python3"])) else { return };
    let python = |code: &str, arguments: &[&str]| {
        let all: Vec<&str> = ["-c", code].into_iter().chain(arguments.iter().copied()).collect();
        system_tests::nbd::run(
            system_tests::process::command("/usr/bin/python3".as_ref()).args(all),
        )
    };
    if !python("import nbd", &[]).status.success() {
        eprintln!("skipped: libnbd for Python is not installed (python3-libnbd)");
        return;
    }
    let served = stage.serve_new("scripted", "8M");
    let reader =
        stage.plugin.serve(&stage.pair.alpha, "reader", &["beta:data/blocks", "--readonly"]);
    let file = stage.file("scripted");
    let arguments = [&served.uri(), file.to_str().expect("text"), &reader.uri()];
    let output = python(SCRIPT, &arguments);
    let told = system_tests::process::words(&output);
    assert!(output.status.success() && told.ends_with("all is well\n"), "{told}\n{}", served.log());
}
