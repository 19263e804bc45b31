//! What is seen of a request while it runs, beside the request: what it did in each stage, and
//! which others it met.

use super::company::Stays;
use super::keys::kind;
use super::passed::Passed;
use super::slab::Beside;
use super::trace::Subject;

/// What is seen of one request.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) passed: Passed,
    /// Requests that it met, and what held it back.
    pub(super) stays: Stays,
}

/// What is seen of all requests.
#[derive(Debug)]
pub(super) struct Observations {
    transfers: Beside<kind::Transfer, Observed>,
    serves: Beside<kind::Serve, Observed>,
}

impl Observations {
    pub(super) fn new(transfers: u32, serves: u32) -> Self {
        Self { transfers: Beside::with_capacity(transfers), serves: Beside::with_capacity(serves) }
    }

    /// A request begins: nothing was seen of it yet.
    pub(super) fn begin(&mut self, subject: Subject) {
        let observed = match subject {
            Subject::Transfer(key) => self.transfers.of_new(key),
            Subject::Serve(key) => self.serves.of_new(key),
        };
        observed.passed.clear();
        observed.stays = Stays::default();
    }

    /// What was seen of a request that runs, or has just ended.
    pub(super) fn of(&self, subject: Subject) -> &Observed {
        match subject {
            Subject::Transfer(key) => self.transfers.at(key),
            Subject::Serve(key) => self.serves.at(key),
        }
    }

    /// As [`Self::of`], to be added to.
    pub(super) fn of_mut(&mut self, subject: Subject) -> &mut Observed {
        match subject {
            Subject::Transfer(key) => self.transfers.at_mut(key),
            Subject::Serve(key) => self.serves.at_mut(key),
        }
    }
}
