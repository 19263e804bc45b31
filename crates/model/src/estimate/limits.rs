//! What a pipeline can be: no cost is below zero, and no stage costs more than all of them.
//!
//! Lines through noise cross these limits. The lines nearest to them that do not are found by
//! projection on one limit after the other (Dykstra 1983), where a line's distance counts in its
//! own errors: of two lines that contradict each other the vaguer one gives way. To cut off what is
//! beyond the limits, the obvious way, moves a line off the points that it went through.

use super::line::Line;

const ROUNDS_MAX: usize = 2000;
/// Moves below this part of the values are arithmetic.
const STILL: f64 = 1e-12;

/// A line as its height at its centre, and its slope: the two are independent.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    height: f64,
    slope: f64,
}

/// `weights · place >= 0`, for the line behind the sums and one of the bottlenecks.
#[derive(Debug, Clone, Copy)]
struct Limit {
    lines: [usize; 2],
    weights: [Place; 2],
}

/// Moves the line of the sums and the lines of the bottlenecks to within the limits.
pub(super) fn keep(total: &mut Line, bottlenecks: &mut [Line]) {
    let lines: Vec<Line> = [*total].into_iter().chain(bottlenecks.iter().copied()).collect();
    let slope = Place { height: 0.0, slope: 1.0 };
    let intercept = |line: &Line| Place { height: 1.0, slope: -line.centre_x };
    let none = Place { height: 0.0, slope: 0.0 };
    let minus = |it: Place| Place { height: -it.height, slope: -it.slope };
    let mut limits = Vec::with_capacity(4 * lines.len());
    for (at, line) in lines.iter().enumerate() {
        for (own, sum) in [(slope, slope), (intercept(line), intercept(&lines[0]))] {
            limits.push(Limit { lines: [at, at], weights: [own, none] });
            if at > 0 {
                limits.push(Limit { lines: [at, 0], weights: [minus(own), sum] });
            }
        }
    }
    let places = project(&lines, &limits);
    let own = |place: &Place| [place.height, place.slope];
    total.move_to(own(&places[0]), [f64::INFINITY; 2]);
    for (line, place) in bottlenecks.iter_mut().zip(&places[1..]) {
        line.move_to(own(place), [total.intercept.value, total.slope.value]);
    }
}

/// The nearest places within all limits.
fn project(lines: &[Line], limits: &[Limit]) -> Vec<Place> {
    let own = |line: &Line| Place { height: line.at(line.centre_x), slope: line.slope.value };
    let mut places: Vec<Place> = lines.iter().map(own).collect();
    let mut moved = vec![0.0; limits.len()];
    let unit = places[0].height.abs() / lines[0].doubts()[0].sqrt();
    for _ in 0..ROUNDS_MAX {
        let mut still = true;
        for (limit, moved) in limits.iter().zip(&mut moved) {
            let terms = || limit.lines.into_iter().zip(limit.weights);
            let room: f64 = terms()
                .map(|(at, by)| places[at].height * by.height + places[at].slope * by.slope)
                .sum();
            let reach = |(at, by): (usize, Place)| {
                let [height, slope] = lines[at].doubts();
                by.height * by.height * height + by.slope * by.slope * slope
            };
            let reach: f64 = terms().map(reach).sum();
            if reach <= 0.0 {
                continue;
            }
            // What this limit moved before may be taken back.
            let needed = (*moved - room / reach).max(0.0);
            let step = needed - *moved;
            *moved = needed;
            still &= step.abs() * reach.sqrt() <= STILL * unit;
            for (at, by) in terms() {
                let [height, slope] = lines[at].doubts();
                let place = &mut places[at];
                place.height += step * by.height * height;
                place.slope += step * by.slope * slope;
            }
        }
        if still {
            break;
        }
    }
    places
}
