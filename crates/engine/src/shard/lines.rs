//! Requests of one client that want a device: which of them may begin fragments.
//!
//! Requests that take turns fragment by fragment all end late. One after the other the last one
//! ends as soon, and half as late in the mean. So of the requests of a client and class at a device
//! two may begin fragments: the one that came first, which so always goes on, and the one with the
//! least left, which so does not wait for long ones. Of equal ones both are the same.
//!
//! That is for a device that one client has to itself. Where several want it there are turns
//! between them ([`super::fair`]), and these are of what waits, so that it has to be much.

use std::collections::HashMap;

use piped_core::ids::DeviceId;
use piped_core::link::LaneClass;
use piped_core::request::Class;

use super::fair::Party;

/// What requests want: a device, or what the page cache has of it. Those that leave by way of a
/// second address stand apart: halves of a read that goes two ways must not wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct At {
    device: DeviceId,
    cached: bool,
    second: bool,
}

impl At {
    pub(super) const fn new(device: DeviceId, cached: bool) -> Self {
        Self { device, cached, second: false }
    }

    /// Where requests stand that leave by a connection of this class.
    pub(super) fn by(self, class: LaneClass) -> Self {
        Self { second: class == LaneClass::Second, ..self }
    }
}

/// The party whose requests stand in a line, their class, and the device.
pub(super) type Key = (Party, Class, At);

/// All lines of a shard.
#[derive(Debug)]
pub(super) struct Lines<T> {
    places: HashMap<Key, usize>,
    lines: Vec<Vec<Member<T>>>,
    /// Places of lines where nobody stands: kept for their memory.
    free: Vec<usize>,
}

#[derive(Debug)]
struct Member<T> {
    item: T,
    /// Bytes that it has not asked the device for.
    left: u64,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self { places: HashMap::new(), lines: Vec::new(), free: Vec::new() }
    }
}

impl<T: Copy + PartialEq> Lines<T> {
    /// Whether a request with so many bytes `left` may begin its next fragment; if so, how many
    /// there are in its line. One that does not stand there yet does from now on.
    pub(super) fn ask(&mut self, key: Key, item: T, left: u64) -> Option<u32> {
        let place = *self.places.entry(key).or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.lines.push(Vec::new());
                self.lines.len() - 1
            })
        });
        let line = &mut self.lines[place];
        let own = line.iter().position(|member| member.item == item).unwrap_or_else(|| {
            line.push(Member { item, left });
            line.len() - 1
        });
        line[own].left = left;
        let may = own == 0 || least(line) == Some(own);
        may.then_some(line.len() as u32)
    }

    /// A request has asked for all it wants, or is given up. Returns those that may go on now.
    pub(super) fn leave(&mut self, key: Key, item: T) -> [Option<T>; 2] {
        let Some(&place) = self.places.get(&key) else { return [None; 2] };
        let line = &mut self.lines[place];
        line.retain(|member| member.item != item);
        if line.is_empty() {
            self.places.remove(&key);
            self.free.push(place);
            return [None; 2];
        }
        [Some(0), least(line).filter(|&least| least > 0)].map(|at| Some(line[at?].item))
    }
}

/// The one with the least left, of equal ones the first.
fn least<T>(line: &[Member<T>]) -> Option<usize> {
    (0..line.len()).min_by_key(|&at| line[at].left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use piped_core::ids::SessionId;

    fn key(client: u32) -> Key {
        (Party::Client(SessionId(client)), Class::Bulk, At::new(DeviceId(1), false))
    }

    #[test]
    fn equal_ones_go_one_after_the_other() {
        let mut lines = Lines::default();
        assert_eq!(lines.ask(key(1), 'a', 9), Some(1));
        assert_eq!(lines.ask(key(1), 'b', 9), None);
        assert_eq!(lines.ask(key(1), 'a', 6), Some(2));
        assert_eq!(lines.ask(key(2), 'c', 9), Some(1), "another client's");
        assert_eq!(lines.ask(key(1), 'd', 9), None);
        assert_eq!(lines.leave(key(1), 'a'), [Some('b'), None]);
        assert_eq!(lines.ask(key(1), 'b', 9), Some(2));
        assert_eq!(lines.leave(key(1), 'd'), [Some('b'), None]);
        assert_eq!(lines.leave(key(1), 'b'), [None; 2]);
        assert_eq!(lines.leave(key(1), 'b'), [None; 2], "it is not there any more");
        assert_eq!(lines.leave(key(2), 'c'), [None; 2]);
        assert!(lines.places.is_empty() && lines.lines.len() == 2);
        let (party, class, at) = key(1);
        let ways = [LaneClass::Bulk, LaneClass::Second].map(|lane| (party, class, at.by(lane)));
        assert_eq!(ways.map(|key| lines.ask(key, 'f', 1)), [Some(1); 2], "halves of one read");
        assert_eq!(ways.map(|key| lines.leave(key, 'f')), [[None; 2]; 2]);
        assert_eq!(lines.ask(key(3), 'e', 1), Some(1));
        assert_eq!(lines.lines.len(), 2, "memory is used again");
    }

    #[test]
    fn a_short_one_waits_for_no_long_one_and_a_long_one_is_not_passed_for_ever() {
        let mut lines = Lines::default();
        assert_eq!(lines.ask(key(1), 0, 1000), Some(1));
        assert_eq!(lines.ask(key(1), 1, 10), Some(2));
        assert_eq!(lines.ask(key(1), 2, 10), None, "as short, but later");
        assert_eq!(lines.ask(key(1), 3, 5), Some(4));
        for left in (900..1000).rev() {
            assert_eq!(lines.ask(key(1), 0, left), Some(4), "the first one always goes on");
        }
        assert_eq!(lines.ask(key(1), 1, 10), None);
        assert_eq!(lines.leave(key(1), 3), [Some(0), Some(1)]);
        assert_eq!(lines.leave(key(1), 0), [Some(1), None]);
    }
}
