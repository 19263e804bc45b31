//! Limits of regions and channels: for all sessions, for one user, for one session.
//!
//! Names are one space for the node, so one user with all names would keep all others out. Peers
//! offer nothing here.

use piped_config::Limits;

/// Things that a session may offer to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A part of its memory.
    Region,
    /// A place to send messages to.
    Channel,
}

/// Present numbers of a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of all sessions together.
    pub all: u32,
    /// The number of all sessions of the user.
    pub of_user: u32,
    /// The number of the session alone.
    pub of_session: u32,
}

/// Checks that there may be one more; if not, returns the full scope and its key.
pub fn check(kind: Kind, uid: u32, counts: Counts, limits: &Limits) -> Result<(), String> {
    let Limits { global, user, client, .. } = limits;
    let (name, most) = match kind {
        Kind::Region => ("regions", [client.regions, user.regions, global.regions]),
        Kind::Channel => ("channels", [client.channels, user.channels, global.channels]),
    };
    let owners = [
        "this session has".to_owned(),
        format!("the sessions of user {uid} have"),
        "there are".to_owned(),
    ];
    let counts = [counts.of_session, counts.of_user, counts.all];
    let scopes = ["client", "user", "global"];
    for (((has, most), owner), scope) in counts.into_iter().zip(most).zip(owners).zip(scopes) {
        if has >= most {
            return Err(format!(
                "{owner} {has} {name} already (limits.{scope}.{name}); close some or raise the \
                 limit"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_full_is_named_with_its_key() {
        let mut limits = Limits::default();
        (limits.client.regions, limits.user.regions, limits.global.regions) = (2, 3, 4);
        (limits.client.channels, limits.user.channels, limits.global.channels) = (1, 1, 1);
        let ask = |kind, all, of_user, of_session| {
            check(kind, 7, Counts { all, of_user, of_session }, &limits).err().unwrap_or_default()
        };
        assert_eq!(ask(Kind::Region, 3, 2, 1), "");
        let refused = ask(Kind::Region, 3, 2, 2);
        assert!(
            refused.contains("this session has 2 regions")
                && refused.contains("limits.client.regions"),
            "{refused}"
        );
        let refused = ask(Kind::Region, 3, 3, 1);
        assert!(
            refused.contains("of user 7 have 3") && refused.contains("limits.user.regions"),
            "{refused}"
        );
        assert!(ask(Kind::Region, 4, 0, 0).contains("limits.global.regions"));
        assert_eq!(ask(Kind::Channel, 0, 0, 0), "");
        assert!(ask(Kind::Channel, 1, 0, 0).contains("limits.global.channels"));
        assert!(ask(Kind::Channel, 1, 1, 1).contains("limits.client.channels"));
    }
}
