use piped_core::modes::IoFeature;

use super::{config, expect_silence, files, sockets, wake};
use crate::io::{FeatureMask, UringConfig, UringIo};

fn exercise(config: &UringConfig) -> UringIo {
    let mut io = UringIo::new(config).unwrap();
    println!("tier: {:?}\n  degraded: {:?}", io.tier(), io.degraded());
    files::exercise(&mut io, false);
    files::exercise(&mut io, true);
    sockets::exercise(&mut io);
    wake::exercise(&mut io);
    expect_silence(&mut io);
    io
}

fn has(io: &UringIo, feature: IoFeature) -> bool {
    io.tier().iter().any(|name| name == feature.name())
}

#[test]
fn each_feature_can_be_missing() {
    for feature in IoFeature::ALL {
        let features = FeatureMask::without(&[feature]);
        let io = exercise(&UringConfig { features, ..config() });
        assert!(!has(&io, feature), "{feature} in {:?}", io.tier());
        if feature != IoFeature::CoopTaskrun {
            let told = io.degraded().iter().any(|line| line.starts_with(feature.name()));
            assert!(told, "{feature} in {:?}", io.degraded());
        }
        let counters = io.counters();
        assert_eq!(counters.buffers_fixed == 0, feature == IoFeature::RegisteredBuffers);
        assert_eq!(counters.files_fixed == 0, feature == IoFeature::RegisteredFiles);
    }
}

#[test]
fn the_steps_below_deferred_work_do_the_same() {
    let coop = FeatureMask::without(&[IoFeature::DeferTaskrun]);
    let io = exercise(&UringConfig { features: coop, ..config() });
    assert!(has(&io, IoFeature::CoopTaskrun) || io.tier()[0] == "interrupt_taskrun");
    let plain = FeatureMask::without(&[IoFeature::DeferTaskrun, IoFeature::CoopTaskrun]);
    let io = exercise(&UringConfig { features: plain, ..config() });
    assert_eq!(io.tier()[0], "interrupt_taskrun");
}

#[test]
fn plain_io_uring_is_enough() {
    let io = exercise(&UringConfig { features: FeatureMask::NONE, ..config() });
    assert_eq!(io.tier(), ["interrupt_taskrun"]);
}

#[test]
fn a_kernel_thread_may_submit() {
    let io = exercise(&UringConfig { sqpoll_idle_ms: Some(1), ..config() });
    let polled = io.tier()[0] == "sqpoll";
    assert!(polled || io.degraded().iter().any(|line| line.starts_with("sqpoll")));
}
