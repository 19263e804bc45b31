//! Other users, whose rights a thread takes until it ends.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A user, with the groups that count for its rights.
#[derive(Debug, Clone, Copy)]
pub struct Who {
    /// The id of the user.
    pub uid: u32,
    /// The id of the user's first group.
    pub gid: u32,
    /// The ids of the user's other groups.
    pub groups: &'static [u32],
}

impl Who {
    /// A user with a group of its own and no other.
    #[must_use]
    pub const fn user(uid: u32) -> Self {
        Self { uid, gid: uid, groups: &[] }
    }

    /// Does something as this user: on a thread of its own, since the kernel has users per thread.
    /// `None`, with the reason printed, where nobody may become another user.
    ///
    /// # Panics
    /// If the work does.
    pub fn does<T: Send>(self, work: impl FnOnce() -> T + Send) -> Option<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| match self.become_it() {
                Ok(()) => Some(work()),
                Err(error) => {
                    eprintln!("skipped: only root can be user {} ({error})", self.uid);
                    None
                }
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn become_it(self) -> rustix::io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().map(|&group| Gid::from_raw(group)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)
    }
}
