//! The computed cases of `vectors.json` and the reference figures of the papers.

use piped_model::evaluate::{equal, lists};
use piped_model::fixed::{Constraints, best, optimum, static_size, whole};
use piped_model::hierarchical::fixed_real;
use piped_model::ramp::{up_down_real, up_real};
use piped_model::reference;
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
        .map(|stage| {
            reference::stage(stage[0].as_f64().expect("g"), stage[1].as_f64().expect("G"), kb)
        })
        .collect()
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

/// The sizes of a case, in bytes.
fn sizes(case: &Value) -> Vec<f64> {
    let list = case["sizes"].as_array().expect("sizes");
    list.iter().map(|size| size.as_f64().expect("a size") * 1000.0).collect()
}

fn assert_sizes(got: &[f64], case: &Value, what: &str) {
    let want = sizes(case);
    let scale: f64 = want.iter().sum();
    assert_eq!(got.len(), want.len(), "{what}: {got:?} instead of {want:?}");
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() < 1e-9 * scale, "{what}: {got} instead of {want}");
    }
}

#[test]
fn ramps_are_the_computed_ones() {
    let cases = vectors("ramp_up_best");
    assert_eq!(cases.len(), 13);
    for (number, case) in cases.iter().enumerate() {
        let what = format!("ramp_up_best {number}");
        let path = stages(case, 1000.0);
        let found = up_real(&path, case["B"].as_f64().expect("B") * 1000.0, 1 << 20).expect("two");
        assert_eq!(found.up, case["k"].as_u64().expect("k"), "{what}");
        assert_close(found.predicted_seconds, case["T"].as_f64().expect("T"), &what);
        assert_sizes(&found.sizes, case, &what);
    }
}

#[test]
fn ramps_up_and_down_are_the_computed_ones() {
    let cases = vectors("ramp_up_down_best");
    assert_eq!(cases.len(), 13);
    for (number, case) in cases.iter().enumerate() {
        let what = format!("ramp_up_down_best {number}");
        let path = stages(case, 1000.0);
        let bytes = case["B"].as_f64().expect("B") * 1000.0;
        let found = up_down_real(&path, bytes, 1 << 20).expect("three");
        assert_eq!(serde_json::json!([found.up, found.down]), case["k1k2"], "{what}");
        assert_eq!(found.sizes.len() as u64, found.up + found.down - 1, "{what}");
        assert_close(found.predicted_seconds, case["T"].as_f64().expect("T"), &what);
        assert_sizes(&found.sizes, case, &what);
    }
}

#[test]
fn gam_comes_out_as_published() {
    let at = |count| equal(&reference::gam(), 4096.0, count, None) * 1e6;
    for (count, micros) in [(5, 188.90), (4, 189.40), (6, 191.07)] {
        assert!((at(count) - micros).abs() < 0.01, "k = {count}: {}", at(count));
    }
    let found = optimum(&reference::gam(), 4096.0, (1, 4096), None);
    assert_eq!(found.count, 5);
    let one = whole(&reference::gam(), 4096, &Constraints::default());
    assert!((one.predicted_seconds / found.predicted_seconds - 1.5188).abs() < 1e-4);
    // FM's constant 128 bytes.
    let small = static_size(&reference::gam(), 4096, 128, &Constraints::default());
    assert!((small.predicted_seconds / found.predicted_seconds - 1.929).abs() < 1e-3);
}

#[test]
fn gms_comes_out_as_published_where_the_bottleneck_moves() {
    let gms = reference::gms();
    let found = optimum(&gms, 8192.0, (1, 8192), None);
    assert_eq!(found.count, 3);
    assert!((found.predicted_seconds * 1e6 - 796.2).abs() < 0.05);
    let four = equal(&gms, 8192.0, 4, None);
    assert!((four / found.predicted_seconds - 1.019).abs() < 1e-3);
    // Below 2.6195 KB the last stage is the slower one, above it stage 1.
    let slower = |kb: f64| gms[1].occupancy(kb * 1024.0) > gms[3].occupancy(kb * 1024.0);
    assert!(!slower(2.619) && slower(2.620));
}

#[test]
fn hierarchical_fixed_plans_are_the_computed_ones() {
    let cases = vectors("hier_B");
    assert_eq!(cases.len(), 13);
    for (number, case) in cases.iter().enumerate() {
        let what = format!("hier_B {number}");
        let pair = |value: &Value| {
            let [overhead, per_kb]: [f64; 2] =
                serde_json::from_value(value.clone()).expect("g and G");
            reference::stage(overhead, per_kb, 1000.0)
        };
        let net = case["net"].as_array().expect("net").iter();
        let path: Vec<Stage> = net.chain([&case["disk"]]).map(pair).collect();
        let bytes = case["B"].as_f64().expect("B") * 1000.0;
        let found = fixed_real(&path, path.len() - 1, bytes, 1 << 16).expect("five stages");
        assert_eq!(found.sizes.len() as u64, case["k"].as_u64().expect("k"), "{what}");
        assert_close(found.model_seconds, case["model"].as_f64().expect("model"), &what);
        assert_close(found.predicted_seconds, case["sim"].as_f64().expect("sim"), &what);
    }
}
