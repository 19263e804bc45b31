//! The file in which is kept what stages cost: whatever is in it, only figures that can be are
//! believed, and a shard that begins with them knows costs that one can plan with.

use piped::kept::format::{Entry, StageName, parse, write};
use piped_core::modes::{CalibrationMode, PlannerMode};
use piped_engine::command::Command;
use piped_planner::kept::{KeptLine, KeptSize, KeptStage};
use piped_report::shard::StageResource;

use crate::Seed;
use crate::world::World;

/// Checks the door of kept figures with an input.
pub fn check(input: &[u8]) {
    let Ok(entries) = parse(input) else { return };
    assert!(entries.iter().all(|entry| entry.cost.check().is_ok()));
    // What was believed once is believed again.
    let again = parse(&write(entries.clone())).expect("its own words");
    let names = |entries: &[Entry]| -> Vec<StageName> {
        entries.iter().map(|entry| entry.stage.clone()).collect()
    };
    assert_eq!(names(&again), names(&entries));
    let mut world = World::new(PlannerMode::Auto, CalibrationMode::Live);
    let known = entries.into_iter().map(|entry| (StageResource::Check, entry.cost)).collect();
    world.command(Command::TakeKept(known));
    for stage in world.shard().stages() {
        let costs = [stage.latency_seconds, stage.overhead_seconds, stage.per_byte_seconds];
        assert!(costs.iter().all(|cost| cost.is_finite() && *cost >= 0.0), "{stage:?}");
        assert!((0.0..=1.0).contains(&stage.confidence), "{stage:?}");
    }
    for known in world.shard().kept() {
        assert!(known.cost.check().is_ok(), "{known:?}");
    }
}

/// A file, and the ways in which it may be spoilt.
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let good = write(vec![
        entry(StageName::Check, 0.0),
        entry(StageName::Disk { device: "wwid eui.1".to_owned(), write: true }, 60e-6),
    ]);
    let text = String::from_utf8_lossy(&good).into_owned();
    let spoilt = [
        ("negative", "\"G\": 1e-9", "\"G\": -1e-9"),
        ("huge", "\"g\": 0.000017", "\"g\": 1e308"),
        ("infinite", "\"g\": 0.000017", "\"g\": 1e999"),
        ("version", "\"version\": 1", "\"version\": 4294967295"),
        ("order", "65536.0", "4096.0"),
        ("unknown", "\"write\"", "\"read\""),
        ("null", "0.9", "null"),
    ];
    let spoilt = spoilt.map(|(name, from, to)| (name.to_owned(), text.replace(from, to).into()));
    let cut = ("cut".to_owned(), good[..good.len() / 2].to_vec());
    [("good".to_owned(), good), ("empty".to_owned(), write(Vec::new())), cut]
        .into_iter()
        .chain(spoilt)
        .collect()
}

fn entry(stage: StageName, latency: f64) -> Entry {
    let line = |bytes| KeptLine { bytes, latency, overhead: 17e-6, per_byte: 1e-9 };
    let sizes = vec![KeptSize { bytes: 4096.0, alone: 3.0, backlogged: 200.0 }];
    let lines = vec![line(4096.0), line(65_536.0)];
    let cost = KeptStage { lines, sizes, spread: None, identifiable: true, confidence: 0.9 };
    Entry { stage, measured_unix: 1.75e9, cost }
}
