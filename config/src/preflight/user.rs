//! The user that a daemon runs as, and what that user may do.

use std::io;

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A user with its groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// Number of the user.
    pub uid: u32,
    /// Groups of the user, its first group in front.
    pub groups: Vec<u32>,
}

/// Runs `work` as a user, on a thread of its own, because the kernel keeps users by thread. So the
/// kernel itself judges access lists, capabilities and mounts, and no code here computes
/// permissions.
///
/// # Errors
/// Only root can become another user.
///
/// # Panics
/// If `work` panics.
pub fn as_user<T: Send>(user: &User, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    if geteuid().as_raw() == user.uid {
        return Ok(work());
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| become_it(user).map(|()| work()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn become_it(user: &User) -> io::Result<()> {
    let groups: Vec<Gid> = user.groups.iter().map(|&group| Gid::from_raw(group)).collect();
    let first = *groups.first().ok_or(io::ErrorKind::InvalidInput)?;
    let uid = Uid::from_raw(user.uid);
    set_thread_groups(&groups)?;
    set_thread_res_gid(first, first, first)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_as_the_user_and_nobody_else_becomes_it() {
        let own = geteuid().as_raw();
        let user = User { uid: 4_000_001, groups: vec![4_000_002, 4_000_003] };
        match as_user(&user, || geteuid().as_raw()) {
            Ok(uid) => assert_eq!(uid, 4_000_001),
            Err(error) => assert!(own != 0, "root may: {error}"),
        }
        assert_eq!(geteuid().as_raw(), own);
        assert_eq!(as_user(&User { uid: own, groups: vec![] }, || 7).expect("it is that user"), 7);
    }
}
