//! Room of a queue for one more request: whether there is any, and waits for it.

use std::time::Duration;

use super::Queue;

impl Queue {
    /// Whether one more request would enter now, or be refused for another reason than a full
    /// queue. Results that nobody has taken and buffers that the kernel holds have their places
    /// still. A look at the queue's own memory, without one at the daemon's: [`Self::poll`] first.
    #[must_use]
    pub fn has_room(&mut self) -> bool {
        self.core_mut().has_place()
    }

    /// Waits until there is room for one more request, or a result that [`Self::poll`] gives; zero
    /// only looks. `false`: the time is over, or nothing is under way that could make room. Without
    /// a daemon there is room for requests that outlive it, and a refusal for others.
    pub fn wait_for_room(&mut self, timeout: Duration) -> bool {
        self.has_room()
            || self.wait_until(Some(timeout), |core| core.is_roomy() || core.table.has_ready())
            || self.has_room()
    }

    /// Waits until cancels that the daemon has not answered have left room for a request.
    /// [`Self::run`] does so by itself.
    pub fn make_room(&mut self) {
        let core = self.core_mut();
        if core.awaits_cancels() && !core.has_room() {
            core.wait_until(None, |core| !core.awaits_cancels() || core.has_room());
        }
    }
}
