//! One store-and-forward step and the chain of them.
//!
//! A stage separates what occupies it (`g + x·G`) from what merely delays (`L`): with an `L` of
//! 70 us and a `g` of 17, one fragment at a time sees 87 us, while several at once leave every 17.
//! Adding both into one number, the obvious way, makes the fragments several times too large.

use core::fmt;
use core::num::NonZeroU32;
use core::ops::Deref;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::room::Room;
use crate::spread::Spread;

/// The most stages of a [`Path`]. Paths live inline, so that planning does not allocate. The
/// longest of the papers has nine, the longest of the daemon 14: a copy from disk to disk with a
/// dial at each stage.
pub const STAGES_MAX: usize = 16;

/// The cost of one stage.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(try_from = "StageFields"))]
pub struct Stage {
    /// `L`: latency that does not occupy the stage, in seconds; finite, >= 0.
    #[cfg_attr(feature = "serde", serde(rename = "latency_seconds"))]
    pub latency: f64,
    /// `g`: overhead of each fragment that occupies the stage, in seconds; finite, >= 0.
    #[cfg_attr(feature = "serde", serde(rename = "overhead_seconds"))]
    pub overhead: f64,
    /// `G`: inverse bandwidth, in seconds per byte; finite, >= 0.
    #[cfg_attr(feature = "serde", serde(rename = "per_byte_seconds"))]
    pub per_byte: f64,
    /// `w`: the most fragments in the stage at once; `None` is unbounded.
    pub window: Option<NonZeroU32>,
}

/// What arrives from outside before it has been checked.
#[cfg(feature = "serde")]
#[derive(Deserialize)]
struct StageFields {
    latency_seconds: f64,
    overhead_seconds: f64,
    per_byte_seconds: f64,
    #[serde(default)]
    window: Option<NonZeroU32>,
}

#[cfg(feature = "serde")]
impl TryFrom<StageFields> for Stage {
    type Error = StageFault;
    fn try_from(fields: StageFields) -> Result<Self, StageFault> {
        Self::new(
            fields.latency_seconds,
            fields.overhead_seconds,
            fields.per_byte_seconds,
            fields.window,
        )
    }
}

/// A parameter of a stage that is no cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageFault {
    /// The name of the parameter.
    pub parameter: &'static str,
    /// The value it was given.
    pub value: f64,
}

impl fmt::Display for StageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a stage's {} is {}: give a finite number that is not negative",
            self.parameter, self.value
        )
    }
}

impl std::error::Error for StageFault {}

impl Stage {
    /// A stage that costs nothing.
    pub const FREE: Self = Self { latency: 0.0, overhead: 0.0, per_byte: 0.0, window: None };

    /// A stage with `L` and `g` in seconds and `G` in seconds per byte.
    ///
    /// # Errors
    /// If a parameter is negative, infinite or not a number.
    ///
    /// ```
    /// use piped_model::stage::Stage;
    /// assert!(Stage::new(70e-6, 17e-6, 0.4e-9, None).is_ok());
    /// assert!(Stage::new(0.0, -1e-6, 0.4e-9, None).is_err());
    /// ```
    pub fn new(
        latency: f64,
        overhead: f64,
        per_byte: f64,
        window: Option<NonZeroU32>,
    ) -> Result<Self, StageFault> {
        Self { latency, overhead, per_byte, window }.checked()
    }

    /// The stage itself, if its parameters are costs.
    ///
    /// # Errors
    /// If a parameter is negative, infinite or not a number.
    pub fn checked(self) -> Result<Self, StageFault> {
        let parameters = [
            ("latency (L)", self.latency),
            ("overhead (g)", self.overhead),
            ("inverse bandwidth (G)", self.per_byte),
        ];
        for (parameter, value) in parameters {
            if !(value.is_finite() && value >= 0.0) {
                return Err(StageFault { parameter, value });
            }
        }
        Ok(self)
    }

    /// The stage with no parameter above so many seconds (per byte): sums of such parameters, and
    /// their ratios, stay finite.
    pub(crate) fn at_most(self, seconds: f64) -> Self {
        Self {
            latency: self.latency.min(seconds),
            overhead: self.overhead.min(seconds),
            per_byte: self.per_byte.min(seconds),
            ..self
        }
    }

    /// How long a fragment of `bytes` keeps the stage busy: `g + x·G`, in seconds.
    ///
    /// ```
    /// use piped_model::stage::Stage;
    /// let stage = Stage { latency: 70e-6, overhead: 17e-6, per_byte: 1e-9, window: None };
    /// assert!((stage.occupancy(1000.0) - 18e-6).abs() < 1e-15);
    /// assert!((stage.alone(1000.0) - 88e-6).abs() < 1e-15);
    /// ```
    #[must_use]
    #[inline]
    pub fn occupancy(&self, bytes: f64) -> f64 {
        self.overhead + bytes * self.per_byte
    }

    /// How long a fragment of `bytes` takes through the empty stage: `L + g + x·G`, in seconds.
    #[must_use]
    #[inline]
    pub fn alone(&self, bytes: f64) -> f64 {
        self.latency + self.occupancy(bytes)
    }

    /// The time between departures in the steady state: `max(g + xG, (g + xG + L)/w)`, in seconds.
    ///
    /// ```
    /// use piped_model::stage::Stage;
    /// let at = |window| {
    ///     let window = std::num::NonZeroU32::new(window);
    ///     Stage { latency: 70e-6, overhead: 17e-6, per_byte: 0.0, window }
    /// };
    /// assert!((at(1).interval(0.0) - 87e-6).abs() < 1e-15);
    /// assert!((at(8).interval(0.0) - 17e-6).abs() < 1e-15);
    /// ```
    #[must_use]
    #[inline]
    pub fn interval(&self, bytes: f64) -> f64 {
        let occupancy = self.occupancy(bytes);
        match self.window {
            None => occupancy,
            Some(window) => occupancy.max((occupancy + self.latency) / f64::from(window.get())),
        }
    }

    /// Two steps on one resource as the one server they are: costs add, the narrower window holds
    /// for both (which is on the safe side where the wider one had its own latency).
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self {
            latency: self.latency + other.latency,
            overhead: self.overhead + other.overhead,
            per_byte: self.per_byte + other.per_byte,
            ..self.narrowed(other.window)
        }
    }

    /// The stage with another bound of fragments at once beside its own; `None` is none.
    pub(crate) fn narrowed(self, window: Option<NonZeroU32>) -> Self {
        let window = match (self.window, window) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self { window, ..self }
    }
}

/// The cost of a stage as a function of the fragment size: one straight line for a [`Stage`], a
/// bent one for an [`crate::estimate::Estimate`].
///
/// A planner that evaluates uniform fragments of `x` bytes asks for the stage *at* `x`. It thus
/// sees that a size fills a socket buffer without knowing what a socket is.
pub trait StageCost {
    /// The line that holds near `bytes`: its `occupancy(bytes)` and `alone(bytes)` are the costs of
    /// a fragment of this size. Parameters are finite and not negative.
    fn stage_at(&self, bytes: f64) -> Stage;

    /// The stage, if it is the same at every size; enables exact search.
    fn straight(&self) -> Option<Stage> {
        None
    }

    /// How far the costs at `bytes` may be off, as a fraction (about two standard errors).
    fn relative_error(&self, bytes: f64) -> f64 {
        let _ = bytes;
        0.0
    }

    /// How much single fragments differ from these costs; `None` if they do not, or if nothing is
    /// known of it.
    fn spread(&self) -> Option<&Spread> {
        None
    }
}

impl StageCost for Stage {
    #[inline]
    fn stage_at(&self, _bytes: f64) -> Stage {
        *self
    }

    #[inline]
    fn straight(&self) -> Option<Stage> {
        Some(*self)
    }
}

impl<T: StageCost + ?Sized> StageCost for &T {
    #[inline]
    fn stage_at(&self, bytes: f64) -> Stage {
        (**self).stage_at(bytes)
    }

    #[inline]
    fn straight(&self) -> Option<Stage> {
        (**self).straight()
    }

    fn relative_error(&self, bytes: f64) -> f64 {
        (**self).relative_error(bytes)
    }

    fn spread(&self) -> Option<&Spread> {
        (**self).spread()
    }
}

/// A stage and how much its fragments differ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spreading {
    /// The mean costs of the stage.
    pub stage: Stage,
    /// What single fragments are late by; `None` if they do not differ.
    pub spread: Option<Spread>,
}

impl StageCost for Spreading {
    fn stage_at(&self, _bytes: f64) -> Stage {
        self.stage
    }

    fn straight(&self) -> Option<Stage> {
        Some(self.stage)
    }

    fn spread(&self) -> Option<&Spread> {
        self.spread.as_ref()
    }
}

/// Ordered stages between two endpoints, 1 to [`STAGES_MAX`]. Derefs to `[Stage]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    stages: [Stage; STAGES_MAX],
    count: usize,
}

/// Stages that make no path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PathFault {
    /// None, or more than [`STAGES_MAX`].
    Count(usize),
    /// A stage with a parameter that is no cost.
    Stage {
        /// The index of the stage.
        index: usize,
        /// What is wrong with it.
        fault: StageFault,
    },
}

impl fmt::Display for PathFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => {
                write!(
                    f,
                    "a path of {count} stages: give 1 to {STAGES_MAX}, merging those on one \
                     resource"
                )
            }
            Self::Stage { index, fault } => write!(f, "stage {index}: {fault}"),
        }
    }
}

impl std::error::Error for PathFault {}

impl Path {
    /// A path through these stages, in order.
    ///
    /// # Errors
    /// If there is no stage, more than [`STAGES_MAX`], or one with a parameter that is no cost.
    pub fn new(stages: &[Stage]) -> Result<Self, PathFault> {
        if stages.is_empty() || stages.len() > STAGES_MAX {
            return Err(PathFault::Count(stages.len()));
        }
        let mut path = Self { stages: [Stage::FREE; STAGES_MAX], count: stages.len() };
        for (index, stage) in stages.iter().enumerate() {
            path.stages[index] =
                stage.checked().map_err(|fault| PathFault::Stage { index, fault })?;
        }
        Ok(path)
    }

    /// The path with all stages of one resource merged, in the place of the first of them.
    /// `resource` names the resource of a stage by the stage's index. Places hardly matter: the
    /// latency of uniform fragments does not depend on the stages' order.
    ///
    /// ```
    /// use piped_model::stage::{Path, Stage};
    /// let step = Stage { latency: 0.0, overhead: 1e-6, per_byte: 1e-9, window: None };
    /// let path = Path::new(&[step, step, step])?;
    /// let merged = path.merged(|index| if index == 1 { "disk" } else { "thread" });
    /// assert_eq!(merged.len(), 2);
    /// assert_eq!(merged[0].overhead, 2e-6);
    /// # Ok::<(), piped_model::stage::PathFault>(())
    /// ```
    #[must_use]
    pub fn merged<R: PartialEq>(&self, resource: impl Fn(usize) -> R) -> Self {
        let mut merged = Self { stages: [Stage::FREE; STAGES_MAX], count: 0 };
        let mut first_of = [0_usize; STAGES_MAX];
        for (index, stage) in self.iter().enumerate() {
            let seen = (0..merged.count).find(|&m| resource(first_of[m]) == resource(index));
            if let Some(place) = seen {
                merged.stages[place] = merged.stages[place].merge(*stage);
            } else {
                first_of[merged.count] = index;
                merged.stages[merged.count] = *stage;
                merged.count += 1;
            }
        }
        merged
    }

    /// The stages in the opposite order (Theorem 2: with the sizes reversed too, the latency is the
    /// same).
    #[must_use]
    pub fn reversed(&self) -> Self {
        let mut path = *self;
        path.stages[..path.count].reverse();
        path
    }
}

impl Deref for Path {
    type Target = [Stage];
    #[inline]
    fn deref(&self) -> &[Stage] {
        &self.stages[..self.count]
    }
}

/// The room between the stages of a path, in bytes: how much may have left one stage's server and
/// not been started by the next one. [`crate::evaluate::within`] says exactly what that means. And
/// [`Room`] over several stages.
///
/// ```
/// use piped_model::stage::Buffers;
/// let buffers = Buffers::UNLIMITED.with(2, 65536);
/// assert_eq!((buffers.before(1), buffers.before(2)), (None, Some(65536)));
/// assert!(buffers.limited() && !Buffers::UNLIMITED.limited());
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Buffers {
    /// Bytes of room by the stage behind; `u64::MAX` is no limit. The first is not used: the source
    /// holds all.
    before: [u64; STAGES_MAX],
    over: [Option<Room>; ROOMS_MAX],
}

/// The most rooms over several stages of a path: bytes of a window, and fragments behind a wire.
const ROOMS_MAX: usize = 2;

impl Buffers {
    /// Room for everything everywhere.
    pub const UNLIMITED: Self = Self { before: [u64::MAX; STAGES_MAX], over: [None; ROOMS_MAX] };

    /// The bytes of buffer before a stage; `None` is unlimited.
    #[must_use]
    pub fn before(&self, stage: usize) -> Option<u64> {
        self.before.get(stage).copied().filter(|&bytes| stage > 0 && bytes < u64::MAX)
    }

    /// These buffers with `bytes` before `stage`. Before stage 0 there is none: all is at the
    /// source. Nor is there behind [`STAGES_MAX`].
    #[must_use]
    pub const fn with(mut self, stage: usize, bytes: u64) -> Self {
        if stage > 0 && stage < STAGES_MAX {
            self.before[stage] = bytes;
        }
        self
    }

    /// These buffers with a room over several stages beside others; at most two are kept.
    #[must_use]
    pub fn over(mut self, room: Room) -> Self {
        if let Some(place) = self.over.iter_mut().find(|place| place.is_none()) {
            *place = Some(room);
        }
        self
    }

    /// The rooms over several stages.
    pub fn rooms(&self) -> impl Iterator<Item = &Room> {
        self.over.iter().flatten()
    }

    /// Whether there is a limit anywhere.
    #[must_use]
    pub fn limited(&self) -> bool {
        self.limits_boundaries() || self.over[0].is_some()
    }

    /// Whether there is a limit between two stages.
    #[must_use]
    pub fn limits_boundaries(&self) -> bool {
        self.before[1..].iter().any(|&bytes| bytes < u64::MAX)
    }

    /// The largest fragment that fits the buffers before any of `stages` and the rooms over them,
    /// in bytes; `u64::MAX` if none is limited.
    #[must_use]
    pub fn least(&self, stages: core::ops::Range<usize>) -> u64 {
        let over = self.rooms().filter(|room| room.first < stages.end).map(Room::certain);
        stages.clone().filter_map(|stage| self.before(stage)).chain(over).min().unwrap_or(u64::MAX)
    }
}

impl Default for Buffers {
    fn default() -> Self {
        Self::UNLIMITED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_are_no_costs_are_refused_with_their_name() {
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            let text = Stage::new(0.0, 0.0, bad, None).unwrap_err().to_string();
            assert!(text.contains("inverse bandwidth"), "{text}");
            assert!(Stage::new(bad, 0.0, 0.0, None).is_err());
            assert!(Stage::new(0.0, bad, 0.0, None).is_err());
        }
        assert_eq!(Path::new(&[]), Err(PathFault::Count(0)));
        assert_eq!(
            Path::new(&[Stage::FREE; STAGES_MAX + 1]),
            Err(PathFault::Count(STAGES_MAX + 1))
        );
        let bad = Stage { overhead: -1.0, ..Stage::FREE };
        assert!(matches!(Path::new(&[Stage::FREE, bad]), Err(PathFault::Stage { index: 1, .. })));
    }

    #[test]
    fn a_stage_survives_json_and_a_bad_one_does_not_enter() {
        let stage = Stage::new(1e-6, 2e-6, 3e-9, NonZeroU32::new(4)).unwrap();
        let text = serde_json::to_string(&stage).unwrap();
        assert_eq!(serde_json::from_str::<Stage>(&text).unwrap(), stage);
        let bad = r#"{"latency_seconds":-1.0,"overhead_seconds":0.0,"per_byte_seconds":0.0}"#;
        assert!(serde_json::from_str::<Stage>(bad).is_err());
    }

    #[test]
    fn merging_adds_costs_and_keeps_the_narrower_window() {
        let a = Stage { latency: 1.0, overhead: 2.0, per_byte: 3.0, window: NonZeroU32::new(4) };
        let b = Stage { window: NonZeroU32::new(2), ..a };
        let merged = a.merge(b);
        assert_eq!((merged.latency, merged.overhead, merged.per_byte), (2.0, 4.0, 6.0));
        assert_eq!(merged.window, NonZeroU32::new(2));
        assert_eq!(a.merge(Stage::FREE), a);
    }

    #[test]
    fn a_path_without_shared_resources_merges_to_itself() {
        let path = Path::new(&[Stage::FREE, Stage { overhead: 1.0, ..Stage::FREE }]).unwrap();
        assert_eq!(path.merged(|index| index), path);
        assert_eq!(path.reversed().reversed(), path);
        assert_eq!(path.reversed()[0].overhead, 1.0);
    }
}
