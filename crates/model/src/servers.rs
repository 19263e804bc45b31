//! Stages that one server works for.
//!
//! A thread reads a fragment, later checks it and later sends it: three stages, and one server that
//! visits each fragment three times. Merged into one stage of their summed cost they would have the
//! right throughput and the wrong order: between its visits a fragment is elsewhere, and meanwhile
//! the server works on others. So stages stay stages, and say which server they have.
//!
//! A server works on one fragment at a time, to the end. Each stage has a line, in order. The
//! server takes the first of the line that has been ready for longest. Of two that are ready since
//! the same time it takes the one that is further.
//!
//! A server *in turns* is an event loop: it takes all fragments that are ready when a turn begins,
//! of all its stages, and lets them go when the turn ends. (Gated service of a polling system, with
//! departures in a batch.) What has only its own stages before it passes these in the same turn,
//! unless a stage has a latency or the room between them a limit. Directly
//! behind the first stage such a server also asks for what comes next: of a plan's depth, a
//! fragment counts until no turn runs that began before it came.

use crate::stage::STAGES_MAX;

/// Which stages have the same server; unless said otherwise, each has its own.
///
/// ```
/// use piped_model::servers::Servers;
/// // A thread works for stages 0, 2 and 3, a wire for stage 1.
/// let servers = Servers::of(["thread", "wire", "thread", "thread"]);
/// assert!(servers.is_shared(3) && servers.first(3) == 0 && servers.first(1) == 1);
/// assert!(!servers.is_shared(2), "the first two have their own");
/// assert_eq!(servers, Servers::APART.with(2, 0).with(3, 2));
/// assert!(servers.in_turns(3).works_in_turns(0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Servers {
    /// For each stage the first stage that has its server.
    first: [u8; STAGES_MAX],
    /// A bit for each stage whose server works in turns, at the first stage that has it.
    turns: u16,
}

const _: () = assert!(STAGES_MAX <= u16::BITS as usize, "a bit for each stage");

impl Servers {
    /// A server for each stage.
    pub const APART: Self = {
        let mut first = [0; STAGES_MAX];
        let mut stage = 0;
        while stage < STAGES_MAX {
            first[stage] = stage as u8;
            stage += 1;
        }
        Self { first, turns: 0 }
    };

    /// The servers of stages in order, by their names. Stages behind [`STAGES_MAX`] are left out.
    #[must_use]
    pub fn of<N: PartialEq>(names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<N> = names.into_iter().take(STAGES_MAX).collect();
        let first = |stage: usize| names.iter().position(|name| *name == names[stage]);
        (0..names.len())
            .fold(Self::APART, |servers, stage| servers.with(stage, first(stage).unwrap_or(stage)))
    }

    /// These servers with `stage` at the server of an `earlier` stage.
    #[must_use]
    pub const fn with(mut self, stage: usize, earlier: usize) -> Self {
        if stage < STAGES_MAX && earlier < stage {
            self.first[stage] = self.first[earlier];
        }
        self
    }

    /// Has the server of `stage` work in turns.
    #[must_use]
    pub const fn in_turns(mut self, stage: usize) -> Self {
        if stage < STAGES_MAX {
            self.turns |= 1 << self.first[stage];
        }
        self
    }

    /// Whether the server of `stage` works in turns.
    #[must_use]
    pub fn works_in_turns(&self, stage: usize) -> bool {
        stage < STAGES_MAX && self.turns & (1 << self.first[stage]) != 0
    }

    /// The server, by its first stage, that asks the first stage for fragments between its turns,
    /// if there is one. `stages`: how many the path has.
    #[must_use]
    pub fn asking(&self, stages: usize) -> Option<usize> {
        let next = stages > 1 && self.works_in_turns(1);
        next.then(|| self.first(1))
    }

    /// The first stage that has the server of `stage`.
    #[must_use]
    pub fn first(&self, stage: usize) -> usize {
        self.first.get(stage).map_or(stage, |&first| usize::from(first))
    }

    /// Whether two stages of the path have one server, or one works in turns, which the recurrence
    /// of the papers does not know. `stages`: how many the path has.
    #[must_use]
    pub fn is_shared(&self, stages: usize) -> bool {
        (0..stages).any(|stage| self.first(stage) != stage || self.works_in_turns(stage))
    }
}

impl Default for Servers {
    fn default() -> Self {
        Self::APART
    }
}
