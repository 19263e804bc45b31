//! Wang et al., "Towards a theory of optimal communication pipelines": figures 2 and 8 to 14.

use piped_model::evaluate;
use piped_model::fixed;
use piped_model::reference::{KIB, gam, gms};
use piped_model::stage::Stage;

use super::chart::{Axis, Content, Figure, Mark, Series, geometric, linear};
use super::parameters;

/// GAM's packet in figures 2a and 8, in bytes.
const GAM_BYTES: f64 = 4096.0;
/// GMS' packet, in bytes.
const GMS_BYTES: f64 = 8192.0;

const FRAGMENTS: &str = "number of fragments k";
const LATENCY: &str = "latency (µs)";

/// All figures of this paper.
pub(crate) fn figures() -> Vec<Figure> {
    vec![one_bottleneck(), moving_bottleneck(), tradeoff(), against_static()]
}

/// Equations 10 and 13 for any real `k`: the latency in us if `bottleneck` is the slowest stage.
fn signature(path: &[Stage], bottleneck: usize, bytes: f64, k: f64) -> f64 {
    let size = bytes / k;
    let once: f64 = path.iter().map(|stage| stage.occupancy(size)).sum();
    ((k - 1.0) * path[bottleneck].occupancy(size) + once) * 1e6
}

/// Equation 12: the best real number of fragments if `bottleneck` is the slowest stage.
fn own_minimum(path: &[Stage], bottleneck: usize, bytes: f64) -> f64 {
    let all: f64 = path.iter().map(|stage| stage.per_byte).sum();
    let stage = &path[bottleneck];
    (bytes * (all - stage.per_byte) / stage.overhead).sqrt()
}

/// The latency for any real `k`: the largest of the stages' signatures.
fn latency(path: &[Stage], bytes: f64, k: f64) -> f64 {
    (0..path.len()).map(|stage| signature(path, stage, bytes, k)).fold(0.0, f64::max)
}

/// GAM's slowest stage at every size: the network.
const GAM_BOTTLENECK: usize = 2;

fn one_bottleneck() -> Figure {
    let path = gam();
    let k = own_minimum(&path, GAM_BOTTLENECK, GAM_BYTES);
    let lowest = [(k, latency(&path, GAM_BYTES, k))];
    Figure {
        name: "pipelines-02a",
        title: "Latency against fragments: one bottleneck".to_owned(),
        source: "Wang et al., figure 2(a)",
        parameters: parameters("GAM", &path, KIB, "; B = 4 KB"),
        caption: format!(
            "4 KB through the Myrinet-GAM pipeline in k equal fragments, by equation 10. The \
             minimum over the reals is at k = {k:.3} (equation 12); whole numbers on both sides of \
             it decide, and 5 is the better one."
        ),
        content: Content::Curves {
            x: Axis::log(FRAGMENTS, 2),
            y: Axis::from_zero(LATENCY),
            series: vec![
                Series::of("latency", Mark::Line, geometric(1.0, 32.0, 100), |k| {
                    Some(latency(&path, GAM_BYTES, k))
                }),
                Series::at("minimum", Mark::Rings, &lowest),
            ],
        },
    }
}

/// The two stages of GMS that can be the bottleneck.
const REQUEST_CPU: usize = 3;
const WIRE: usize = 1;

fn moving_bottleneck() -> Figure {
    let path = gms();
    let curve = |stage| move |k| Some(signature(&path, stage, GMS_BYTES, k));
    // Where both occupancies are the same size's: g + xG on both sides.
    let (slow, wire) = (&path[REQUEST_CPU], &path[WIRE]);
    let size = (slow.overhead - wire.overhead) / (wire.per_byte - slow.per_byte);
    let crossing = GMS_BYTES / size;
    let [own, wires] = [REQUEST_CPU, WIRE].map(|stage| own_minimum(&path, stage, GMS_BYTES));
    let on_curve = |k| (k, latency(&path, GMS_BYTES, k));
    let below = (wires, signature(&path, WIRE, GMS_BYTES, wires));
    let ks = || geometric(1.0, 16.0, 120);
    Figure {
        name: "pipelines-02b",
        title: "Latency against fragments: the bottleneck moves".to_owned(),
        source: "Wang et al., figure 2(b)",
        parameters: parameters("GMS", &path, KIB, "; B = 8 KB"),
        caption: format!(
            "8 KB through the GMS pipeline. Above fragments of {:.4} KB the wire is slowest, below \
             them the requester's CPU; the latency is the larger of the two signature curves. The \
             paper takes candidates from all signatures and warns of false local minima (the \
             cross). A maximum of convex functions is convex: the latency itself has one minimum, \
             and no other place is to be tried.",
            size / KIB
        ),
        content: Content::Curves {
            x: Axis::log(FRAGMENTS, 2),
            y: Axis::from_zero(LATENCY),
            series: vec![
                Series::of("latency", Mark::Line, ks(), |k| Some(latency(&path, GMS_BYTES, k))),
                Series::of("signature of Req-CPU", Mark::Dashed, ks(), curve(REQUEST_CPU)),
                Series::of("signature of Wire", Mark::Dashed, ks(), curve(WIRE)),
                Series::at("candidates", Mark::Rings, &[on_curve(crossing), on_curve(own)]),
                Series::at("false minimum", Mark::Crosses, &[below]),
            ],
        },
    }
}

fn tradeoff() -> Figure {
    let path = gam();
    let ks = || linear(1.0, 16.0, 15);
    let whole = |k: f64| evaluate::equal(&path, GAM_BYTES, k as u64, None) * 1e6;
    let best = fixed::optimum(&path, GAM_BYTES, (1, GAM_BYTES as u64), None).count as f64;
    let bottleneck = |k: f64| k * path[GAM_BOTTLENECK].occupancy(GAM_BYTES / k) * 1e6;
    Figure {
        name: "pipelines-08",
        title: "What fragments cost and save".to_owned(),
        source: "Wang et al., figure 8",
        parameters: parameters("GAM", &path, KIB, "; B = 4 KB"),
        caption: "The tradeoff of equation 4: more fragments occupy the bottleneck longer (T_b) \
                  and let the first one reach it and the last one leave sooner (T_f + T_l). The \
                  sum is least at 5 fragments: 188.90 µs, as the paper finds in model and \
                  measurement. KB = 1024 bytes."
            .to_owned(),
        content: Content::Curves {
            x: Axis::around(FRAGMENTS),
            y: Axis::from_zero(LATENCY),
            series: vec![
                Series::of("T", Mark::Dots, ks(), |k| Some(whole(k))),
                Series::of("T_b", Mark::Dots, ks(), |k| Some(bottleneck(k))),
                Series::of("T_f + T_l", Mark::Dots, ks(), |k| Some(whole(k) - bottleneck(k))),
                Series::at(format!("best: k = {best}"), Mark::Rings, &[(best, whole(best))]),
            ],
        },
    }
}

fn against_static() -> Figure {
    let path = gam();
    // Every 1/8 KB, so that the teeth of the static sizes are seen.
    let sizes = || linear(0.125, 32.0, 255);
    let static_size = |fragment| {
        move |kb: f64| Some(evaluate::uniform(&path, fragment, (kb * KIB) as u64, None) * 1e6)
    };
    let best = |kb: f64| {
        let bytes = kb * KIB;
        Some(fixed::optimum(&path, bytes, (1, bytes as u64), None).predicted_seconds * 1e6)
    };
    Figure {
        name: "pipelines-09",
        title: "The best fixed size against static sizes".to_owned(),
        source: "Wang et al., figure 9",
        parameters: parameters("GAM", &path, KIB, ""),
        caption:
            "Static fragments of 128 B (Fast Messages) and of 4 KB (the original GAM) against \
                  the best fixed size for each packet. At 4 KB one fragment takes 51.88 % longer \
                  than the best size, 128 B 92.9 % longer. The paper draws measurements; these are \
                  the model's values. KB = 1024 bytes."
                .to_owned(),
        content: Content::Curves {
            x: Axis::from_zero("packet size (KB)"),
            y: Axis::from_zero(LATENCY),
            series: vec![
                Series::of("static, 128 B", Mark::Line, sizes(), static_size(128)),
                Series::of("static, 4 KB", Mark::Line, sizes(), static_size(4096)),
                Series::of("best fixed size", Mark::Line, sizes(), best),
            ],
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gam_is_best_in_five_fragments() {
        let figure = tradeoff();
        let lowest = figure.points("T").iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        assert_eq!(lowest.0, 5.0);
        for (k, us) in [(4.0, 189.40), (5.0, 188.90), (6.0, 191.07)] {
            assert!((figure.value("T", k) - us).abs() < 0.005);
            let parts = figure.value("T_b", k) + figure.value("T_f + T_l", k);
            assert!((parts - us).abs() < 0.005);
        }
    }

    #[test]
    fn static_sizes_lose_by_what_the_theory_says() {
        let figure = against_static();
        let best = figure.value("best fixed size", 4.0);
        assert!((figure.value("static, 4 KB", 4.0) / best - 1.5188).abs() < 5e-5);
        assert!((figure.value("static, 128 B", 4.0) / best - 1.929).abs() < 5e-4);
        for &(kb, us) in figure.points("best fixed size") {
            assert!(us <= figure.value("static, 4 KB", kb) + 1e-9, "{kb}");
            assert!(us <= figure.value("static, 128 B", kb) + 1e-9, "{kb}");
        }
    }

    #[test]
    fn gms_has_one_minimum_and_it_is_at_three_fragments() {
        let figure = moving_bottleneck();
        let latencies: Vec<f64> = figure.points("latency").iter().map(|point| point.1).collect();
        let falls = latencies.windows(2).map(|two| two[1] < two[0]).collect::<Vec<_>>();
        assert!(falls.is_sorted_by(|before, after| before >= after), "falls, then rises");
        assert!(falls[0] && !falls[falls.len() - 1]);
        let at = |k: f64| latency(&gms(), GMS_BYTES, k);
        assert!((at(3.0) - 796.2).abs() < 0.05);
        assert!((at(4.0) / at(3.0) - 1.019).abs() < 5e-4);
        let (crossing, _) = figure.points("candidates")[0];
        assert!((GMS_BYTES / crossing / KIB - 2.6195).abs() < 5e-5);
        // The false minimum is no latency: it lies below the curve.
        let (k, below) = figure.points("false minimum")[0];
        assert!(below < 0.9 * at(k));
    }

    #[test]
    fn one_bottleneck_has_the_optimum_of_equation_12() {
        let (k, us) = one_bottleneck().points("minimum")[0];
        let size = GAM_BYTES / k / KIB;
        assert!((size - (4.0 * 7.5 / 40.0_f64).sqrt()).abs() < 1e-9);
        assert!(us < 188.90 && us > 188.0);
    }
}
