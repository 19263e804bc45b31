//! What planning costs: `cargo bench -p piped-theory`. Bars on network → disk: fixed 1 us, best 1
//! ms, certified 20 ms; plans of two or three levels 1 ms.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use piped_model::fixed::{self, Constraints};
use piped_model::hierarchical;
use piped_model::leveled::{self, Level, Task};
use piped_model::reference::{KB, PACKET_BYTES, network_disk, network_disk_network, stage};
use piped_theory::{best, bound, release};

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

/// Paths as the daemon has them: a read of 1 MiB with all dials on, and a copy from disk to disk.
fn leveled(criterion: &mut Criterion) {
    let net = [(60.0, 5.0), (5.0, 8.0), (40.0, 5.0), (60.0, 5.0), (0.2, 0.06)];
    let net = net.map(|(overhead, per_kb)| stage(overhead, per_kb, KB));
    let source = [stage(60.0, 0.5, KB), stage(500.0, 8.0, KB)];
    let sink = [stage(100.0, 1.0, KB), stage(700.0, 6.0, KB)];
    let level = |stages, alignment| Level { alignment, smallest: alignment, ..Level::free(stages) };
    let read = [&source[..], &net].concat();
    let copy = [&source[..], &net, &sink].concat();
    let levels = [level(0..2, 4096), level(2..7, 512), level(7..9, 4096)];
    let mut group = criterion.benchmark_group("leveled");
    for (name, path, levels) in [("read", &read, &levels[..2]), ("copy", &copy, &levels[..])] {
        let task = Task::new(path, 1 << 20, levels, 32);
        group.bench_function(name, |b| b.iter(|| leveled::candidates(black_box(&task))));
    }
    group.finish();
}

criterion_group!(benches, plans, leveled);
criterion_main!(benches);
