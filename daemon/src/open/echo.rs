//! The region of zeros that every node has, for other nodes' calibrations.
//!
//! It has nobody's data, so a peer that may connect may read it: it costs what a read costs, and
//! counts against that peer's limits. Made when it is first asked for, and then kept: most nodes
//! are never calibrated against, and what is kept is a MiB.

use std::cell::OnceCell;
use std::sync::Arc;

use piped_config::admin::calibrate::ECHO_REGION;
use piped_control::fault::OpenFault;
use piped_core::access::Access;
use piped_core::ids::{RegionId, SessionId};
use piped_core::limits::FRAGMENT_BYTES_MAX;
use piped_core::status::Status;
use piped_ring::Segment;
use piped_ring::handshake::Audience;

use super::RegionSource;

/// The region of zeros that peers read for calibration, made when it is first opened.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    memory: OnceCell<Arc<Segment>>,
}

impl Echo {
    /// The region, for somebody who wants `access`.
    pub(crate) fn find(&self, access: Access) -> Result<RegionSource, OpenFault> {
        if access != Access::READ {
            return Err(OpenFault::denied(format!("the region `{ECHO_REGION}` is for reading")));
        }
        let length = u64::from(FRAGMENT_BYTES_MAX);
        let memory = match self.memory.get() {
            Some(memory) => Arc::clone(memory),
            None => {
                let made = Segment::create(length);
                let made = made.map_err(|error| {
                    OpenFault::new(
                        Status::WouldBlock,
                        format!("no memory for `{ECHO_REGION}`: {error}"),
                    )
                })?;
                Arc::clone(self.memory.get_or_init(|| Arc::new(made)))
            }
        };
        Ok(RegionSource {
            region: RegionId::ECHO,
            owner: SessionId(0),
            // No shard is its home: each has it as it has another shard's.
            home: usize::MAX,
            segment: 0,
            memory,
            offset: 0,
            length,
            access,
            audience: Audience::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_for_all_and_nobody_writes_it() {
        let echo = Echo::default();
        let read = Access::READ;
        let [one, other] = [(); 2].map(|()| echo.find(read).expect("there"));
        assert!(Arc::ptr_eq(&one.memory, &other.memory));
        assert_eq!(one.length, one.memory.len());
        let atomic = Access { atomic: true, ..Access::READ };
        for access in [Access::READ_WRITE, Access::NONE, atomic] {
            assert_eq!(echo.find(access).expect_err("read only").status, Status::Denied);
        }
    }
}
