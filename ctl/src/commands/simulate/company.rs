//! Several transfers at once, each planned with the others in mind.

use piped_core::modes::PlannerMode;
use piped_core::request::Class;

use super::*;

const COMPANY: &str = include_str!("../../../../docs/scenarios/company.toml");

/// Disks, with the link behind them: balanced, and either of them the slower one.
const PATHS: [[&str; 2]; 4] = [
    ["g = '0.2ms'\nG = '125MB/s'", "g = '5us'\nG = '125MB/s'"],
    ["L = '0.1ms'\ng = '20us'\nG = '500MB/s'", "L = '30us'\ng = '5us'\nG = '125MB/s'"],
    ["g = '4ms'\nG = '50MB/s'", "L = '30us'\ng = '5us'\nG = '125MB/s'"],
    ["L = '70us'\ng = '5us'\nG = '2GB/s'", "L = '20us'\ng = '3us'\nG = '1.2GB/s'"],
];

fn scenario_of([disk, link]: [&str; 2], bytes: u64, at_once: u64) -> Scenario {
    let text = format!(
        "[nodes.home]\n[nodes.server.disks.data]\n{disk}\nwindow = 32\n[[links]]\nnodes = \
         ['server', 'home']\n{link}\n[[transfers]]\nnode = 'home'\nread = 'server:data'\nbytes = \
         {bytes}\nat_once = {at_once}\n"
    );
    scenario::parse(&text).expect("a scenario")
}

/// Mean times of so many at once, in seconds: of `auto` each time, of plans for one alone that pass
/// in turn, and of whole ones.
fn means(path: [&str; 2], bytes: u64, at_once: u64, rounds: u32) -> (Vec<f64>, f64, f64) {
    let scenario = scenario_of(path, bytes, at_once);
    let mut world = World::new(&scenario).expect("nodes");
    let node = world.find("home").expect("it is there");
    let transfer = &scenario.transfers[0];
    let verbs: Vec<Verb> = (0..at_once)
        .map(|place| verb(&mut world, transfer, node, (place * bytes, bytes)).expect("a read"))
        .collect();
    let mut in_turn = f64::INFINITY;
    for place in 0..120 {
        world.record();
        world.run(node, &verbs[..1], Class::Bulk).expect("it ends");
        let traces = world.recorded();
        let planned = traces.iter().map(|(_, trace)| trace).find(|it| !it.levels.is_empty());
        let mean = model(&world, &scenario, transfer, planned).expect("a path").map(|it| it.0);
        // The usual one, not the first guesses.
        in_turn = in_turn.min(mean.filter(|_| place >= 100).unwrap_or(f64::INFINITY));
    }
    let auto =
        (0..rounds).map(|_| world.run(node, &verbs, Class::Bulk).expect("they end")).collect();
    world.plan(PlannerMode::Whole, None);
    (auto, in_turn, world.run(node, &verbs, Class::Bulk).expect("they end"))
}

#[test]
fn the_example_of_the_theory_takes_as_long_as_said() {
    let report = simulate(&scenario::parse(COMPANY).expect("a scenario")).expect("it runs");
    let row = |name: &str| report.transfers.iter().find(|row| row.name == name).expect("there");
    let median = |name: &str| row(name).median_seconds * 1e3;
    for name in ["8, whole", "8, as if alone", "2, auto", "4, auto", "8, auto"] {
        let model = row(name).model_seconds.expect("a path");
        let off = row(name).median_seconds / model - 1.0;
        assert!(off.abs() < 0.01, "{name}: {off}");
    }
    assert!((median("8, whole") - 47.1).abs() < 0.1, "{}", median("8, whole"));
    assert!((median("8, as if alone") - 44.6).abs() < 0.1, "{}", median("8, as if alone"));
    assert!(median("8, auto") < 44.0, "{}", median("8, auto"));
}

#[test]
fn several_at_once_are_as_fast_as_in_turn_or_whole() {
    for path in PATHS {
        for bytes in [256 << 10, 1 << 20, 4 << 20] {
            for at_once in [2, 4, 8] {
                let (auto, in_turn, whole) = means(path, bytes, at_once, 8);
                let best = in_turn.min(whole);
                let mut later = auto[auto.len() / 2..].to_vec();
                later.sort_by(f64::total_cmp);
                let ratio = later[later.len() / 2] / best;
                assert!(ratio <= 1.05, "{path:?} {bytes} {at_once}: {ratio} of {best}, {auto:?}");
            }
        }
    }
}

#[test]
fn long_ones_pass_in_turn() {
    let (auto, in_turn, whole) = means(PATHS[0], 16 << 20, 8, 3);
    assert!(auto.iter().all(|&mean| mean <= 1.05 * in_turn.min(whole)), "{auto:?} {in_turn}");
}
