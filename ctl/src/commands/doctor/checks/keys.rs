//! Checks of this node's key file; its content is never read.

use super::exports::rights;
use crate::commands::doctor::facts::Facts;
use crate::commands::doctor::finding::Finding;

pub(super) fn file(facts: &Facts) -> Vec<Finding> {
    let subject = "key";
    let trusts =
        facts.config.as_ref().is_some_and(|it| it.peers.values().any(|peer| peer.key.is_some()));
    let Some(key) = &facts.key else {
        if facts.has_network() && !trusts {
            return vec![
                Finding::warning(subject, "this node has none")
                    .why(
                        "its lanes are plain: everybody on the network can read them, and pose as \
                         a peer",
                    )
                    .fix("pipectl keys generate")
                    .fix("pipectl keys trust PEER KEY   # here, and on the peer"),
            ];
        }
        return Vec::new();
    };
    let path = key.path.display();
    let Some(node) = &key.node else {
        return vec![match key.is_missing {
            true => Finding::error(subject, format!("{path} is not there"))
                .why("the daemon does not start without the key that its configuration names")
                .fix("pipectl keys generate"),
            false => Finding::unknown(subject, format!("{path} cannot be looked at by this user"))
                .fix("sudo pipectl doctor"),
        }];
    };
    if node.mode & piped_config::KEY_FILE_OPEN_MODE != 0 {
        return vec![
            Finding::error(subject, format!("{path} has mode {:04o}", node.mode & 0o7777))
                .why("everybody that can read it can pose as this node")
                .fix(format!("chmod 0640 {path}"))
                .fix("pipectl keys generate --help   # if others may have read it: a new one"),
        ];
    }
    if let Some(user) = &facts.process.user
        && rights(node, user) & 4 == 0
    {
        return vec![
            Finding::error(subject, format!("{} may not read {path}", user.name))
                .why("the daemon does not start without its key")
                .fix(format!("chgrp {} {path} && chmod 0640 {path}", user.name)),
        ];
    }
    vec![Finding::ok(subject, format!("{path} is for the daemon alone"))]
}
