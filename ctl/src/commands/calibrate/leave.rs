//! The daemon's permit to calibrate: short, and renewed while this program lives, so that a killed
//! program blocks nobody.

use std::cell::Cell;
use std::time::{Duration, Instant};

use piped_config::admin::calibrate::{CALIBRATE, CalibrateBody, Calibrating};

use crate::admin::Admin;
use crate::clock;
use crate::commands::cp::stop::Stop;
use crate::failure::{Exit, Failure};

/// Seconds that a permit lasts.
const SECONDS: u32 = 15;
/// Time between renewals: two may be late before the permit ends.
const RENEWED: Duration = Duration::from_secs(5);

/// A permit, given back when dropped.
#[derive(Debug)]
pub(super) struct Leave<'a> {
    admin: &'a Admin,
    number: Cell<u64>,
    /// Time of the last request for it.
    asked: Cell<Instant>,
}

impl<'a> Leave<'a> {
    pub(super) fn take(admin: &'a Admin) -> Result<Self, Failure> {
        let asked = clock::now();
        let number = Cell::new(ask(admin, None)?);
        Ok(Self { admin, number, asked: Cell::new(asked) })
    }

    fn renew(&self) -> Result<(), Failure> {
        let now = clock::now();
        if !is_due(self.asked.get(), now) {
            return Ok(());
        }
        let renewed = match ask(self.admin, Some(self.number.get())) {
            // The permit ended because this program was stopped for a while. A new one will do, if
            // nobody else has it.
            Err(refused) if refused.exit() == Exit::Refused => ask(self.admin, None),
            renewed => renewed,
        };
        self.number.set(renewed?);
        self.asked.set(now);
        Ok(())
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let body = CalibrateBody { leave: Some(self.number.get()), seconds: 0 };
        // A permit that is not given back ends by itself.
        let _ = self.admin.put(CALIBRATE, body);
    }
}

fn ask(admin: &Admin, leave: Option<u64>) -> Result<u64, Failure> {
    let given: Calibrating =
        admin.put_and_read(CALIBRATE, CalibrateBody { leave, seconds: SECONDS })?;
    Ok(given.leave)
}

fn is_due(asked: Instant, now: Instant) -> bool {
    now.saturating_duration_since(asked) >= RENEWED
}

/// Checks made while waiting for anything, at least every [`super::LOOK`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Watch<'a> {
    pub(super) stop: &'a Stop,
    pub(super) leave: &'a Leave<'a>,
}

impl Watch<'_> {
    /// Renews the permit when due; an error once a signal came.
    pub(super) fn look(&self) -> Result<(), Failure> {
        self.stop.check()?;
        self.leave.renew()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leave_is_renewed_long_before_its_end_and_not_at_every_look() {
        let asked = clock::now();
        assert!(!is_due(asked, asked));
        assert!(!is_due(asked, asked + super::super::LOOK));
        assert!(is_due(asked, asked + Duration::from_secs(SECONDS.into()) / 3));
    }
}
