//! Connections to a unix socket that have no place yet, or get none.
//!
//! They are closed at once, and a close hangs if one of the passed descriptors hangs in its own
//! close ([`crate::closing`]). The listener must not wait for that, because others wait to be
//! accepted. So each party has accounts of its own here, with threads of its own: strangers, as one
//! party; every user that is admitted; and those that may change the daemon. From Linux 6.16 on
//! nobody can pass descriptors without a place ([`crate::io::socket::let_pass_descriptors`]), and
//! nothing hangs. Before, the listener waits if a party has more connections on their way out than
//! its account has room for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use piped_control::access::Rules;
use piped_control::parties::Credentials;

use crate::closing::{Account, Closer, HeldFile};
use crate::limits::{
    DOORSTEP_CLOSERS, DOORSTEP_CLOSERS_OF_USER, DOORSTEP_USERS_MAX, doorstep_files,
    doorstep_files_of_user,
};

/// Party of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Knock {
    /// A user that may change the daemon.
    Trusted,
    /// A user that is admitted.
    User(u32),
    /// A user that is not admitted.
    Stranger,
}

impl Knock {
    /// Party of a user. `is_admitted` is about the socket in question.
    pub(crate) fn of(rules: &Rules, who: &Credentials, is_admitted: bool) -> Self {
        match is_admitted {
            false => Self::Stranger,
            true if rules.admits_changes(who) => Self::Trusted,
            true => Self::User(who.uid),
        }
    }
}

/// Holds connections without a place.
#[derive(Debug)]
pub(crate) struct Doorstep {
    closer: Closer,
    files_of_user: usize,
    trusted: Arc<Account>,
    strangers: Arc<Account>,
    /// Accounts that still have open files.
    users: RefCell<BTreeMap<u32, Weak<Account>>>,
}

impl Doorstep {
    /// Doorstep for a process that may have `nofile` files.
    pub(crate) fn new(closer: &Closer, nofile: u64) -> Self {
        let nofile = usize::try_from(nofile).unwrap_or(usize::MAX);
        let account =
            || Account::new(closer.clone(), doorstep_files(nofile), DOORSTEP_CLOSERS, None);
        Self {
            closer: closer.clone(),
            files_of_user: doorstep_files_of_user(nofile),
            trusted: account(),
            strangers: account(),
            users: RefCell::default(),
        }
    }

    /// Holds a connection in its party's account. Waits while the party has too many here.
    pub(crate) async fn hold(&self, socket: OwnedFd, whose: Knock) -> HeldFile {
        let account = self.account_of(whose);
        let mut held = account.hold_uncounted(socket);
        held.move_to(&mut account.room(1).await);
        held
    }

    fn account_of(&self, whose: Knock) -> Arc<Account> {
        let uid = match whose {
            Knock::Trusted => return Arc::clone(&self.trusted),
            Knock::Stranger => return Arc::clone(&self.strangers),
            Knock::User(uid) => uid,
        };
        let mut users = self.users.borrow_mut();
        if let Some(account) = users.get(&uid).and_then(Weak::upgrade) {
            return account;
        }
        users.retain(|_, account| account.strong_count() > 0);
        if users.len() >= DOORSTEP_USERS_MAX {
            return Arc::clone(&self.strangers);
        }
        let threads = DOORSTEP_CLOSERS_OF_USER;
        let account = Account::new(self.closer.clone(), self.files_of_user, threads, None);
        users.insert(uid, Arc::downgrade(&account));
        account
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closing::testing::{hanging, is_closed, watched, with_closer};

    /// Twice as many as there are threads, so that the rest waits.
    const HANGING: usize = 2 * DOORSTEP_CLOSERS;

    #[test]
    fn what_hangs_of_one_party_keeps_no_other_out() {
        with_closer(async |closer| {
            let doorstep = Doorstep::new(&closer, 0);
            let mut theirs = Vec::new();
            for whose in [Knock::Stranger, Knock::User(7)] {
                let files = if whose == Knock::Stranger { HANGING } else { 8 };
                for _ in 0..files {
                    let (ours, other) = hanging();
                    drop(doorstep.hold(ours, whose).await);
                    theirs.push(other);
                }
            }
            for whose in [Knock::Trusted, Knock::User(8)] {
                for _ in 0..3 * DOORSTEP_CLOSERS {
                    let (file, reader) = watched();
                    drop(doorstep.hold(file, whose).await);
                    is_closed(reader).await;
                }
            }
            assert!(doorstep.account_of(Knock::User(7)).try_room(1).is_none(), "it has its share");
            drop(theirs);
        });
    }

    #[test]
    fn more_users_than_are_counted_count_with_the_strangers() {
        let (closer, _leaving) = Closer::new();
        let doorstep = Doorstep::new(&closer, 0);
        let all: Vec<_> = (0..DOORSTEP_USERS_MAX as u32)
            .map(|uid| doorstep.account_of(Knock::User(uid)))
            .collect();
        let another = || doorstep.account_of(Knock::User(u32::MAX));
        assert!(Arc::ptr_eq(&another(), &doorstep.strangers));
        assert!(Arc::ptr_eq(&doorstep.account_of(Knock::User(3)), &all[3]));
        drop(all);
        assert!(!Arc::ptr_eq(&another(), &doorstep.strangers));
        assert_eq!(doorstep.users.borrow().len(), 1);
    }
}
