//! qemu's programs for images.

use std::fs;

use system_tests::nbd::{are_there, succeed};
use system_tests::process::pattern;

use super::{MIB, Stage};

#[test]
fn qemu_converts_compares_and_maps() {
    let Some(stage) = Stage::set().filter(|_| are_there(&["qemu-img", "qemu-io"])) else { return };
    let (image, back) = (stage.beside("image"), stage.beside("back.qcow2"));
    let mut bytes = pattern(24 * MIB);
    bytes[4 * MIB..12 * MIB].fill(0);
    fs::write(&image, &bytes).expect("written");
    let served = stage.serve_new("image", "24M");
    let uri = served.uri();
    let _ = succeed("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &image, &uri]);
    assert!(fs::read(stage.file("image")).expect("there") == bytes, "what was converted");
    let _ = succeed("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &uri]);
    let _ = succeed("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, &back]);
    let _ = succeed("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &back, &uri]);
    let map = succeed("qemu-img", &["map", "-f", "raw", "--output=json", &uri]);
    let map: serde_json::Value = serde_json::from_str(&map).expect("JSON");
    let holes = map.as_array().expect("a list").iter().filter(|range| range["zero"] == true);
    let zeros: u64 = holes.filter_map(|range| range["length"].as_u64()).sum();
    assert_eq!(zeros, 8 * MIB as u64, "{map}");
    for write in [&[][..], &["-w", "--flush-interval=16"]] {
        let mut bench = vec!["bench", "-f", "raw", "-c", "2000", "-d", "16", "-s", "4096"];
        bench.extend(write);
        bench.push(&uri);
        let _ = succeed("qemu-img", &bench);
    }
}

#[test]
fn qemu_io_finds_its_patterns_again() {
    let Some(stage) = Stage::set().filter(|_| are_there(&["qemu-img", "qemu-io"])) else { return };
    let served = stage.serve_new("patterns", "32M");
    let check = |format: &str| {
        let uri = served.uri();
        let mut arguments = vec!["-f", format];
        for command in [
            "write -P 0x11 0 1M",
            "write -P 0x22 513 4095",
            "write -f -P 0x33 3M 300k",
            "write -z 64k 64k",
            "write -z -u 256k 128k",
            "discard 512k 128k",
            "aio_write -P 0x44 8M 8M",
            "aio_write -P 0x55 16M 1k",
            "aio_flush",
            "flush",
            "read -P 0x11 8k 56k",
            "read -P 0x22 513 4095",
            "read -P 0x33 3M 300k",
            "read -P 0 64k 64k",
            "read -P 0 256k 128k",
            "read -P 0x44 8M 8M",
            "read -P 0x55 16M 1k",
            "read -P 0x11 1020k 4k",
        ] {
            arguments.extend(["-c", command]);
        }
        arguments.push(&uri);
        let told = succeed("qemu-io", &arguments);
        assert!(!told.contains("verification failed") && !told.contains("error"), "{told}");
    };
    check("raw");
    // An image with a format of its own, on the device.
    let _ = succeed("qemu-img", &["create", "-q", "-f", "qcow2", &served.uri(), "24M"]);
    check("qcow2");
    let _ = succeed("qemu-img", &["check", "-f", "qcow2", &served.uri()]);
}
