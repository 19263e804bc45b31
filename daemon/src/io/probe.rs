//! What this kernel offers, found out by trying: a version number says nothing about back-ports,
//! containers' filters or limits.

use std::fmt;
use std::io;
use std::str::FromStr;

use io_uring::{IoUring, Probe, opcode};

use super::UringError;
use super::restrict::{LENDING, NEEDED};

/// Something the driver uses when it can and does without when it must.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Feature {
    /// Completions are worked off when the shard asks for them (`SINGLE_ISSUER | DEFER_TASKRUN`).
    DeferTaskrun,
    /// Completions do not interrupt the shard (`COOP_TASKRUN`), the step below.
    CoopTaskrun,
    /// Segments are pinned once instead of per operation.
    RegisteredBuffers,
    /// Files are looked up once instead of per operation.
    RegisteredFiles,
    /// The ring's own descriptor is looked up once instead of per system call.
    RingFd,
    /// One bad operation does not stop the rest of a batch from being submitted.
    SubmitAll,
    /// The submission queue has no indirection array.
    NoSqarray,
    /// A doorbell is armed once instead of after every ring.
    MultishotPoll,
    /// Sends that lend their memory instead of having it copied, and say afterwards what became of it.
    SendZeroCopy,
    /// The ring does what the driver is for, on its registered files, and nothing else.
    Restrictions,
}

impl Feature {
    /// All of them, best known first.
    pub const ALL: [Self; 10] = [
        Self::DeferTaskrun,
        Self::CoopTaskrun,
        Self::RegisteredBuffers,
        Self::RegisteredFiles,
        Self::RingFd,
        Self::SubmitAll,
        Self::NoSqarray,
        Self::MultishotPoll,
        Self::SendZeroCopy,
        Self::Restrictions,
    ];

    /// Its name in the configuration and in `pipectl status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeferTaskrun => "defer_taskrun",
            Self::CoopTaskrun => "coop_taskrun",
            Self::RegisteredBuffers => "registered_buffers",
            Self::RegisteredFiles => "registered_files",
            Self::RingFd => "ring_fd",
            Self::SubmitAll => "submit_all",
            Self::NoSqarray => "no_sqarray",
            Self::MultishotPoll => "multishot_poll",
            Self::SendZeroCopy => "send_zero_copy",
            Self::Restrictions => "restrictions",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no feature.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no io_uring feature; known are defer_taskrun, coop_taskrun, registered_buffers, \
     registered_files, ring_fd, submit_all, no_sqarray, multishot_poll, send_zero_copy, \
     restrictions"
)]
pub struct UnknownFeature(pub String);

impl FromStr for Feature {
    type Err = UnknownFeature;

    fn from_str(name: &str) -> Result<Self, UnknownFeature> {
        Self::ALL
            .into_iter()
            .find(|feature| feature.name() == name)
            .ok_or_else(|| UnknownFeature(name.to_owned()))
    }
}

/// The features the driver may use. Lower tiers are forced by taking features out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureMask(u16);

impl FeatureMask {
    /// Everything the kernel has.
    pub const ALL: Self = Self(u16::MAX);
    /// Plain io_uring.
    pub const NONE: Self = Self(0);

    /// All but these.
    #[must_use]
    pub fn without(features: &[Feature]) -> Self {
        features.iter().fold(Self::ALL, |mask, feature| Self(mask.0 & !mask_of(*feature)))
    }

    /// Whether a feature may be used.
    #[must_use]
    pub const fn has(self, feature: Feature) -> bool {
        self.0 & mask_of(feature) != 0
    }

    pub(super) fn remove(&mut self, feature: Feature) {
        self.0 &= !mask_of(feature);
    }
}

impl Default for FeatureMask {
    fn default() -> Self {
        Self::ALL
    }
}

const fn mask_of(feature: Feature) -> u16 {
    1 << feature as u8
}

/// How a shard's turn and the kernel share the work of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taskrun {
    Defer,
    Coop,
    Interrupt,
    /// A kernel thread submits.
    Polled {
        idle_ms: u32,
    },
}

/// The shape of the ring to make.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) sq_entries: u32,
    pub(super) cq_entries: u32,
    pub(super) taskrun: Taskrun,
    pub(super) submit_all: bool,
    pub(super) no_sqarray: bool,
    /// It does nothing until it is told to serve, see `restrict`.
    pub(super) disabled: bool,
}

impl Shape {
    /// The least ring there is, to try one thing on.
    pub(super) const TRIAL: Self = Self {
        sq_entries: 1,
        cq_entries: 2,
        taskrun: Taskrun::Interrupt,
        submit_all: false,
        no_sqarray: false,
        disabled: false,
    };

    pub(super) fn build(self) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_cqsize(self.cq_entries);
        match self.taskrun {
            Taskrun::Defer => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            }
            Taskrun::Coop => {
                builder.setup_coop_taskrun().setup_taskrun_flag();
            }
            Taskrun::Interrupt => {}
            Taskrun::Polled { idle_ms } => {
                builder.setup_sqpoll(idle_ms);
            }
        }
        if self.submit_all {
            builder.setup_submit_all();
        }
        if self.no_sqarray {
            builder.setup_no_sqarray();
        }
        if self.disabled {
            builder.setup_r_disabled();
        }
        builder.build(self.sq_entries)
    }
}

/// Choose the best ring that the kernel has and the mask allows, and say what is missing.
///
/// # Errors
/// [`UringError::Refused`] if io_uring may not be used at all.
pub(super) fn choose(
    mask: &mut FeatureMask,
    sqpoll_idle_ms: Option<u32>,
    lines: &mut Vec<String>,
) -> Result<Shape, UringError> {
    drop(Shape::TRIAL.build().map_err(UringError::from_setup)?);
    let polled = sqpoll_idle_ms.filter(|idle_ms| {
        let shape = Shape { taskrun: Taskrun::Polled { idle_ms: *idle_ms }, ..Shape::TRIAL };
        shape
            .build()
            .inspect_err(|error| lines.push(format!("sqpoll: the kernel refuses it ({error})")))
            .is_ok()
    });
    let mut offers = |feature: Feature, shape: Shape| {
        if !mask.has(feature) {
            lines.push(format!("{feature}: switched off by [io] disable_features"));
            return false;
        }
        let Err(error) = shape.build() else { return true };
        mask.remove(feature);
        lines.push(format!("{feature}: this kernel does not have it ({error})"));
        false
    };
    let submit_all = offers(Feature::SubmitAll, Shape { submit_all: true, ..Shape::TRIAL });
    let no_sqarray = offers(Feature::NoSqarray, Shape { no_sqarray: true, ..Shape::TRIAL });
    let taskrun = if let Some(idle_ms) = polled {
        Taskrun::Polled { idle_ms }
    } else if offers(Feature::DeferTaskrun, Shape { taskrun: Taskrun::Defer, ..Shape::TRIAL }) {
        Taskrun::Defer
    } else if offers(Feature::CoopTaskrun, Shape { taskrun: Taskrun::Coop, ..Shape::TRIAL }) {
        Taskrun::Coop
    } else {
        Taskrun::Interrupt
    };
    Ok(Shape { taskrun, submit_all, no_sqarray, ..Shape::TRIAL })
}

/// Check that the ring has what nothing here can do without.
///
/// # Errors
/// [`UringError::TooOld`] naming what is missing.
pub(super) fn require(ring: &IoUring) -> Result<(), UringError> {
    let params = ring.params();
    if !params.is_feature_nodrop() {
        return Err(UringError::TooOld { missing: "completions that are never dropped" });
    }
    if !params.is_feature_ext_arg() {
        return Err(UringError::TooOld { missing: "waiting with a timeout" });
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(UringError::from_setup)?;
    match NEEDED.into_iter().find(|(code, _)| !probe.is_supported(*code)) {
        Some((_, missing)) => Err(UringError::TooOld { missing }),
        None => Ok(()),
    }
}

/// `IORING_SEND_ZC_REPORT_USAGE`, from `linux/io_uring.h`: the notification says whether the kernel copied.
pub(super) const REPORT_USAGE: u16 = 1 << 3;

/// Why sends cannot lend their memory, if they cannot. The operation is older than the flag without which nobody
/// would know that it is of no use, so it is tried with the flag, on a socket that does not exist: a kernel that
/// has both complains of the socket.
pub(super) fn lacks_zero_copy(ring: &IoUring) -> Option<String> {
    let mut probe = Probe::new();
    let asked = ring.submitter().register_probe(&mut probe);
    if asked.is_err() || !LENDING.into_iter().all(|code| probe.is_supported(code)) {
        return Some(String::from("this kernel does not have it"));
    }
    match try_usage() {
        Ok(result) if result == -libc::EBADF => None,
        Ok(result) => {
            let error = io::Error::from_raw_os_error(-result);
            Some(format!("this kernel does not say whether it copied ({error})"))
        }
        Err(error) => Some(format!("it could not be tried ({error})")),
    }
}

/// What a send of nothing to nobody comes to.
fn try_usage() -> io::Result<i32> {
    let mut ring = Shape::TRIAL.build()?;
    let nobody = io_uring::types::Fd(-1);
    let entry = opcode::SendZc::new(nobody, std::ptr::null(), 0).zc_flags(REPORT_USAGE).build();
    // SAFETY: the entry names no memory.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let first = ring.completion().next().map(|cqe| cqe.result());
    first.ok_or_else(|| io::Error::other("no completion"))
}

#[cfg(test)]
mod tests {
    use super::{Feature, FeatureMask};

    #[test]
    fn names_and_features_are_one_to_one() {
        for feature in Feature::ALL {
            assert_eq!(feature.name().parse(), Ok(feature));
        }
        let fault = "sqpol".parse::<Feature>().unwrap_err().to_string();
        for feature in Feature::ALL {
            assert!(fault.contains(feature.name()), "{fault} does not name {feature}");
        }
    }

    #[test]
    fn a_mask_takes_out_what_it_names() {
        let mask = FeatureMask::without(&[Feature::RingFd, Feature::DeferTaskrun]);
        for feature in Feature::ALL {
            let out = matches!(feature, Feature::RingFd | Feature::DeferTaskrun);
            assert_eq!(mask.has(feature), !out, "{feature}");
            assert!(!FeatureMask::NONE.has(feature));
        }
    }
}
