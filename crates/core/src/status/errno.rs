//! What the kernel's error numbers mean, and which of them stands for a status.

use super::Status;

/// Error numbers of Linux on all machines with the common table, each with its status. The first of
/// several with one status is the one that stands for it.
const ERRNOS: [(i32, Status); 32] = [
    (2, Status::NotFound),      // ENOENT
    (22, Status::Invalid),      // EINVAL
    (9, Status::Denied),        // EBADF: not open for that
    (125, Status::Cancelled),   // ECANCELED
    (28, Status::NoSpace),      // ENOSPC
    (122, Status::NoSpace),     // EDQUOT
    (27, Status::TooLarge),     // EFBIG
    (31, Status::TooLarge),     // EMLINK
    (30, Status::ReadOnly),     // EROFS
    (13, Status::NotPermitted), // EACCES
    (1, Status::NotPermitted),  // EPERM
    (16, Status::NotPermitted), // EBUSY: a mount, or in use by the system
    (26, Status::NotPermitted), // ETXTBSY: it runs
    (17, Status::Exists),       // EEXIST
    (20, Status::NotDirectory), // ENOTDIR
    (21, Status::IsDirectory),  // EISDIR
    (39, Status::NotEmpty),     // ENOTEMPTY
    (40, Status::Loop),         // ELOOP
    (18, Status::CrossDevice),  // EXDEV
    (36, Status::NameTooLong),  // ENAMETOOLONG
    (95, Status::Unsupported),  // EOPNOTSUPP
    (38, Status::Unsupported),  // ENOSYS
    (25, Status::Unsupported),  // ENOTTY
    (11, Status::WouldBlock),   // EAGAIN
    (24, Status::WouldBlock),   // EMFILE
    (23, Status::WouldBlock),   // ENFILE
    (12, Status::WouldBlock),   // ENOMEM
    (90, Status::TooLong),      // EMSGSIZE: no room for the answer
    (116, Status::Gone),        // ESTALE
    (14, Status::BadBuffer),    // EFAULT: the client's memory has vanished
    (35, Status::Locked),       // EDEADLK: what a lock that is there gives here
    (5, Status::Io),            // EIO
];

/// Numbers for statuses where what the kernel's answers would mean of a file is something else.
const OWN: [(i32, Status); 10] = [
    (13, Status::Denied),            // EACCES
    (2, Status::NoExport),           // ENOENT
    (2, Status::NoDirectory),        // ENOENT
    (9, Status::BadHandle),          // EBADF
    (110, Status::DeadlineExceeded), // ETIMEDOUT
    (113, Status::PeerLost),         // EHOSTUNREACH
    (84, Status::Corrupt),           // EILSEQ
    (108, Status::Closed),           // ESHUTDOWN
    (5, Status::OutcomeUnknown),     // EIO
    (11, Status::Locked),            // EAGAIN, as `fcntl` says
];

/// The status of an error number.
pub(super) fn status_of(errno: i32) -> Status {
    let known = ERRNOS.iter().find(|(number, _)| *number == errno);
    known.map_or(Status::Io, |(_, status)| *status)
}

/// The error number of a status.
pub(super) fn errno_of(status: Status) -> Option<i32> {
    let mut all = OWN.iter().chain(&ERRNOS);
    all.find(|(_, known)| *known == status).map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_but_ok_has_a_number() {
        for status in Status::ALL {
            let Some(errno) = status.errno() else {
                assert_eq!(status, Status::Ok);
                continue;
            };
            let is_own = OWN.iter().any(|(_, own)| *own == status);
            assert_eq!(Status::of_errno(errno) == status, !is_own, "{status:?} has {errno}");
        }
        assert_eq!(Status::of_errno(99_999), Status::Io);
    }

    #[test]
    fn a_number_means_one_thing() {
        let mut numbers = ERRNOS.map(|(number, _)| number);
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "each number once");
    }
}
