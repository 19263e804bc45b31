//! What planning costs: `cargo bench -p piped-model`. Bars on network → disk: fixed 1 us, best 1 ms, certified 20 ms.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use piped_model::fixed::{self, Constraints};
use piped_model::reference::{PACKET_BYTES, network_disk, network_disk_network};
use piped_model::{best, bound, hierarchical, release};

fn plans(criterion: &mut Criterion) {
    let limits = Constraints::default();
    for (name, path) in
        [("network-disk", network_disk()), ("network-disk-network", network_disk_network())]
    {
        let mut group = criterion.benchmark_group(name);
        group
            .sample_size(20)
            .measurement_time(Duration::from_secs(2))
            .warm_up_time(Duration::from_millis(500));
        let path = &*path;
        group.bench_function("fixed", |b| {
            b.iter(|| fixed::best(black_box(path), PACKET_BYTES, &limits))
        });
        group.bench_function("hierarchical-ramp", |b| {
            b.iter(|| hierarchical::ramp(black_box(path), PACKET_BYTES, &limits));
        });
        group.bench_function("release-curve", |b| {
            b.iter(|| release::release_curve(black_box(path), PACKET_BYTES, &limits));
        });
        group.bench_function("best", |b| {
            b.iter(|| best::best(black_box(path), PACKET_BYTES, &limits))
        });
        group.bench_function("bound", |b| {
            b.iter(|| bound::lower_bound(black_box(path), PACKET_BYTES))
        });
        group.bench_function("certified", |b| {
            b.iter(|| best::certified(black_box(path), PACKET_BYTES, &limits));
        });
        group.finish();
    }
}

criterion_group!(benches, plans);
criterion_main!(benches);
