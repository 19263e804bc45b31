//! The permit to calibrate: only one operator at a time loads paths on purpose, because two would
//! measure each other.
//!
//! Nothing is loaded here: the holder of the permit is a client like any other, with a client's
//! limits and clean-up. So a killed holder's permit only has to end by itself.

use hyper::StatusCode;
use piped_config::admin::calibrate::{CALIBRATE_SECONDS_MAX, CalibrateBody, Calibrating};
use piped_core::units::Nanos;

use super::parse::Refused;
use crate::control::Control;
use crate::io::clock;

/// The last permit that was given.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Leave {
    number: u64,
    until: Nanos,
}

pub(super) fn change(control: &Control, body: CalibrateBody) -> Result<Calibrating, Refused> {
    let now = clock::now();
    let leave = decide(control.leave.get(), body, now)?;
    control.leave.set(leave);
    match body.leave {
        None => tracing::warn!(leave = leave.number, "CALIBRATING: paths are loaded on purpose"),
        Some(_) if body.seconds == 0 => tracing::info!(leave = leave.number, "calibrated"),
        // Renewals come every few seconds.
        Some(_) => tracing::debug!(leave = leave.number, body.seconds, "calibrating"),
    }
    Ok(Calibrating { leave: leave.number, seconds: body.seconds })
}

fn decide(there: Leave, body: CalibrateBody, now: Nanos) -> Result<Leave, Refused> {
    let CalibrateBody { leave, seconds } = body;
    if seconds > CALIBRATE_SECONDS_MAX {
        let text = format!(
            "a permit is for {CALIBRATE_SECONDS_MAX} s at most, not for {seconds}: renew it before \
             it is over"
        );
        return Err(Refused::bad(text));
    }
    let is_taken = now < there.until;
    let number = match leave {
        None if is_taken => {
            let left = there.until.since(now).seconds().ceil();
            let text = format!(
                "somebody else calibrates: two would measure each other. Wait for that, or end it; \
                 a killed program keeps you out for {left} s more at the most"
            );
            return Err(Refused::new(StatusCode::CONFLICT, text));
        }
        None => there.number + 1,
        Some(number) if number == there.number && is_taken => number,
        Some(number) => {
            let text = format!("leave {number} is over; ask for another one");
            return Err(Refused::new(StatusCode::CONFLICT, text));
        }
    };
    Ok(Leave { number, until: now + Nanos::from_millis(u64::from(seconds) * 1000) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(there: Leave, leave: Option<u64>, seconds: u32, at: u64) -> Result<Leave, StatusCode> {
        let body = CalibrateBody { leave, seconds };
        decide(there, body, Nanos::from_millis(at * 1000)).map_err(|refused| refused.status)
    }

    #[test]
    fn who_is_refused_is_told_how_long_a_dead_one_keeps_him_out() {
        let first = ask(Leave::default(), None, 15, 100).expect("nobody has it");
        let body = CalibrateBody { leave: None, seconds: 15 };
        let refused = decide(first, body, Nanos::from_millis(103_000)).expect_err("taken");
        for word in ["somebody else calibrates", "end it", "killed", "for 12 s more"] {
            assert!(refused.error.contains(word), "{}", refused.error);
        }
        const { assert!(CALIBRATE_SECONDS_MAX <= 60, "a dead one keeps others out for so long") };
    }

    #[test]
    fn one_at_a_time_until_it_is_given_back_or_over() {
        let first = ask(Leave::default(), None, 10, 100).expect("nobody has it");
        assert_eq!(ask(first, None, 10, 109).expect_err("taken"), StatusCode::CONFLICT);
        let longer = ask(first, Some(1), 10, 105).expect("its own");
        assert_eq!(ask(longer, None, 10, 114).expect_err("taken"), StatusCode::CONFLICT);
        let second = ask(longer, None, 10, 115).expect("over");
        assert_eq!(second.number, 2);
        assert_eq!(ask(second, Some(1), 0, 116).expect_err("another's"), StatusCode::CONFLICT);
        let back = ask(second, Some(2), 0, 116).expect("its own");
        assert!(ask(back, None, 10, 116).is_ok());
        assert_eq!(ask(back, Some(2), 10, 117).expect_err("over"), StatusCode::CONFLICT);
        let long = CALIBRATE_SECONDS_MAX + 1;
        assert_eq!(ask(back, None, long, 116).expect_err("long"), StatusCode::BAD_REQUEST);
    }
}
