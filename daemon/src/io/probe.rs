//! Features of this kernel, found by trying: a version number says nothing about back-ports,
//! containers' filters or limits.

use std::io;

use io_uring::{IoUring, Probe, opcode};
use piped_core::modes::IoFeature;

use super::UringError;
use super::restrict::{LENDING, NEEDED};

/// The features the driver may use. Lower tiers are forced by taking features out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureMask(u16);

impl FeatureMask {
    /// All that the kernel has.
    pub const ALL: Self = Self(u16::MAX);
    /// Plain io_uring without features.
    pub const NONE: Self = Self(0);

    /// All features but these.
    #[must_use]
    pub fn without(features: &[IoFeature]) -> Self {
        features.iter().fold(Self::ALL, |mask, feature| Self(mask.0 & !mask_of(*feature)))
    }

    /// Whether a feature may be used.
    #[must_use]
    pub const fn has(self, feature: IoFeature) -> bool {
        self.0 & mask_of(feature) != 0
    }

    pub(super) fn remove(&mut self, feature: IoFeature) {
        self.0 &= !mask_of(feature);
    }
}

impl Default for FeatureMask {
    fn default() -> Self {
        Self::ALL
    }
}

const fn mask_of(feature: IoFeature) -> u16 {
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

/// Shape of the ring to make.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) sq_entries: u32,
    pub(super) cq_entries: u32,
    pub(super) taskrun: Taskrun,
    pub(super) submit_all: bool,
    pub(super) no_sqarray: bool,
    /// Whether the ring is made disabled until it is told to serve, see `restrict`.
    pub(super) disabled: bool,
}

impl Shape {
    /// The smallest ring, to try one thing on.
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

/// Chooses the best ring that the kernel has and the mask allows, and reports what is missing.
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
    let mut offers = |feature: IoFeature, shape: Shape| {
        if !mask.has(feature) {
            lines.push(format!("{feature}: switched off by [io] disable_features"));
            return false;
        }
        let Err(error) = shape.build() else { return true };
        mask.remove(feature);
        lines.push(format!("{feature}: this kernel does not have it ({error})"));
        false
    };
    let submit_all = offers(IoFeature::SubmitAll, Shape { submit_all: true, ..Shape::TRIAL });
    let no_sqarray = offers(IoFeature::NoSqarray, Shape { no_sqarray: true, ..Shape::TRIAL });
    let taskrun = if let Some(idle_ms) = polled {
        Taskrun::Polled { idle_ms }
    } else if offers(IoFeature::DeferTaskrun, Shape { taskrun: Taskrun::Defer, ..Shape::TRIAL }) {
        Taskrun::Defer
    } else if offers(IoFeature::CoopTaskrun, Shape { taskrun: Taskrun::Coop, ..Shape::TRIAL }) {
        Taskrun::Coop
    } else {
        Taskrun::Interrupt
    };
    Ok(Shape { taskrun, submit_all, no_sqarray, ..Shape::TRIAL })
}

/// Checks that the ring has all that the driver cannot do without.
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

/// `IORING_SEND_ZC_REPORT_USAGE`, from `linux/io_uring.h`: the notification says whether the kernel
/// copied.
pub(super) const REPORT_USAGE: u16 = 1 << 3;

/// Reason why sends cannot lend their memory, if they cannot. The operation is older than the flag
/// without which its effect is unknown. So it is tried with the flag, on a socket that does not
/// exist: a kernel that has both complains about the socket.
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

/// Result of an empty send to a socket that does not exist.
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
    use super::*;

    #[test]
    fn a_mask_takes_out_what_it_names() {
        let mask = FeatureMask::without(&[IoFeature::RingFd, IoFeature::DeferTaskrun]);
        for feature in IoFeature::ALL {
            let out = matches!(feature, IoFeature::RingFd | IoFeature::DeferTaskrun);
            assert_eq!(mask.has(feature), !out, "{feature}");
            assert!(!FeatureMask::NONE.has(feature));
        }
    }
}
