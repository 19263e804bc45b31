//! The computed cases of `vectors.json` and the reference figures of the papers.

use piped_model::evaluate::{equal, lists};
use piped_model::fixed::{Constraints, best, optimum, static_size, whole};
use piped_model::stage::Stage;
use serde_json::Value;

fn vectors(kind: &str) -> Vec<Value> {
    let all: Value =
        serde_json::from_str(include_str!("vectors.json")).expect("vectors.json is JSON");
    all[kind].as_array().expect("each kind is a list").clone()
}

/// Stages of a case: microseconds, and microseconds per `kb` bytes.
fn stages(case: &Value, kb: f64) -> Vec<Stage> {
    let list = case["stages"].as_array().expect("stages");
    list.iter()
        .map(|stage| micros(stage[0].as_f64().expect("g"), stage[1].as_f64().expect("G"), kb))
        .collect()
}

fn micros(overhead: f64, per_kb: f64, kb: f64) -> Stage {
    Stage { latency: 0.0, overhead: overhead * 1e-6, per_byte: per_kb * 1e-6 / kb, window: None }
}

fn assert_close(got_seconds: f64, want_micros: f64, what: &str) {
    let error = (got_seconds * 1e6 / want_micros - 1.0).abs();
    assert!(
        error < 1e-9,
        "{what}: {} us instead of {want_micros}, off by {error:e}",
        got_seconds * 1e6
    );
}

#[test]
fn fragment_lists_take_the_computed_time() {
    let cases = vectors("latency_parts");
    assert_eq!(cases.len(), 15);
    for (number, case) in cases.iter().enumerate() {
        let path = stages(case, case["kb"].as_f64().expect("kb"));
        let parts: Vec<Vec<u64>> =
            serde_json::from_value(case["parts_bytes"].clone()).expect("bytes are whole");
        let parts: Vec<&[u64]> = parts.iter().map(Vec::as_slice).collect();
        let seconds = lists(&path, &parts, None).expect("the case is well-formed");
        assert_close(seconds, case["T"].as_f64().expect("T"), &format!("latency_parts {number}"));
    }
}

#[test]
fn the_best_fixed_count_is_the_computed_one() {
    let cases = vectors("fixed_best");
    assert_eq!(cases.len(), 15);
    for (number, case) in cases.iter().enumerate() {
        let path = stages(case, 1000.0);
        let bytes = case["B"].as_f64().expect("B") * 1000.0;
        let found = optimum(&path, bytes, (1, 1_000_000), None);
        let want = case["k"].as_u64().expect("k");
        assert_eq!(found.count, want, "fixed_best {number}");
        let micros = case["T"].as_f64().expect("T");
        assert_close(found.predicted_seconds, micros, &format!("fixed_best {number}"));
        // In whole bytes the same count must come out, within the rounding of one byte.
        let rounded = best(&path, bytes.round() as u64, &Constraints::default());
        assert_eq!(rounded.count, want, "fixed_best {number} in bytes");
        assert!((rounded.predicted_seconds * 1e6 / micros - 1.0).abs() < 1e-3);
    }
}

fn gam() -> [Stage; 4] {
    [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)].map(|(g, per_kb)| micros(g, per_kb, 1024.0))
}

#[test]
fn gam_comes_out_as_published() {
    let at = |count| equal(&gam(), 4096.0, count, None) * 1e6;
    for (count, micros) in [(5, 188.90), (4, 189.40), (6, 191.07)] {
        assert!((at(count) - micros).abs() < 0.01, "k = {count}: {}", at(count));
    }
    let found = optimum(&gam(), 4096.0, (1, 4096), None);
    assert_eq!(found.count, 5);
    let one = whole(&gam(), 4096, &Constraints::default());
    assert!((one.predicted_seconds / found.predicted_seconds - 1.5188).abs() < 1e-4);
    // FM's constant 128 bytes.
    let small = static_size(&gam(), 4096, 128, &Constraints::default());
    assert!((small.predicted_seconds / found.predicted_seconds - 1.929).abs() < 1e-3);
}

#[test]
fn gms_comes_out_as_published_where_the_bottleneck_moves() {
    let gms = [(2.1, 25.6), (4.0, 60.1), (2.1, 25.6), (92.8, 26.2)]
        .map(|(g, per_kb)| micros(g, per_kb, 1024.0));
    let found = optimum(&gms, 8192.0, (1, 8192), None);
    assert_eq!(found.count, 3);
    assert!((found.predicted_seconds * 1e6 - 796.2).abs() < 0.05);
    let four = equal(&gms, 8192.0, 4, None);
    assert!((four / found.predicted_seconds - 1.019).abs() < 1e-3);
    // Below 2.6195 KB the last stage is the slower one, above it stage 1.
    let slower = |kb: f64| gms[1].occupancy(kb * 1024.0) > gms[3].occupancy(kb * 1024.0);
    assert!(!slower(2.619) && slower(2.620));
}
