//! Checks of exports: they exist, the daemon's user may use them, and their file systems have
//! direct I/O and room.

use piped_config::units;

use crate::commands::doctor::facts::{DaemonUser, Directory, ExportFacts, Facts, Node, Seen};
use crate::commands::doctor::finding::Finding;

/// One part in this many is too little free space.
const FREE_SHARE: u64 = 20;

pub(super) fn exports(facts: &Facts) -> Vec<Finding> {
    facts.exports.iter().flat_map(|it| export(it, facts)).collect()
}

fn export(it: &ExportFacts, facts: &Facts) -> Vec<Finding> {
    let user = facts.process.user.as_ref();
    let (subject, path) = (format!("export {}", it.name), it.path.display());
    let broken = |what: String| {
        Finding::error(subject.clone(), what)
            .why("the daemon does not start with it; a reload is refused")
    };
    match it.directory {
        Directory::There => {}
        Directory::Missing => {
            let owner = user.map_or("piped", |user| user.name.as_str());
            return vec![facts.reloaded(
                broken(format!("{path} is not there")).fix(format!("install -d -o {owner} {path}")),
            )];
        }
        Directory::Other => {
            return vec![
                facts.reloaded(
                    broken(format!("{path} is no directory"))
                        .fix(format!("correct exports.{}.path", it.name)),
                ),
            ];
        }
        Directory::Closed => {
            return vec![
                Finding::unknown(subject, format!("{path} cannot be looked at by this user"))
                    .fix("sudo pipectl doctor"),
            ];
        }
    }
    let mut findings = Vec::new();
    match it.in_daemon {
        Some(Seen::Hidden) => findings.push(
            Finding::error(
                subject.clone(),
                format!("{path} is hidden from the daemon by its unit"),
            )
            .why("the unit's sandbox (ProtectHome= and the like) leaves it out")
            .fix(format!("systemctl edit piped   # [Service] BindPaths={path}"))
            .fix("systemctl restart piped"),
        ),
        Some(Seen::ReadOnly) if it.write => findings.push(
            Finding::error(subject.clone(), format!("{path} is read-only for the daemon"))
                .why("writes to it fail: the unit's sandbox, or the mount, is read-only")
                .fix(format!("systemctl edit piped   # [Service] ReadWritePaths={path}"))
                .fix("systemctl restart piped"),
        ),
        _ => {}
    }
    match user {
        None => {
            findings.push(Finding::unknown(subject.clone(), "the daemon's user cannot be seen"))
        }
        Some(user) => findings.extend(permission(it, user, &subject)),
    }
    match it.direct {
        Some(false) => findings.push(
            Finding::warning(
                subject.clone(),
                format!("the file system of {path} has no direct I/O"),
            )
            .why("its files go through the page cache: a copy more, and less is known of the disk")
            .fix("put the directory on ext4, XFS or btrfs"),
        ),
        None => findings
            .push(Finding::unknown(subject.clone(), "direct I/O: no file there to try it with")),
        Some(true) => {}
    }
    if let Some((free, total)) = it.space
        && it.write
        && free < total / FREE_SHARE
    {
        findings.push(
            Finding::warning(
                subject.clone(),
                format!("{} of {} are free below {path}", units::bytes(free), units::bytes(total)),
            )
            .why("writes end with no_space when nothing is left")
            .fix(format!("du -xsh {path}/* | sort -h | tail")),
        );
    }
    if findings.is_empty() {
        let room =
            it.space.map_or_else(String::new, |(free, _)| format!(", {} free", units::bytes(free)));
        let what = if it.write { "read and write" } else { "read" };
        let device = format!("a file of it as a block device: nbdkit piped {}/FILE", it.name);
        findings.push(Finding::ok(subject, format!("{path}: {what}, direct I/O{room}; {device}")));
    }
    findings
}

/// Warns of owners and modes that keep the daemon's user out. Access lists are not seen here, so it
/// is not an error.
fn permission(it: &ExportFacts, user: &DaemonUser, subject: &str) -> Option<Finding> {
    let (last, way) = it.chain.split_last()?;
    let closed = |node: &Node, wanted: u32, verb: &str| {
        let path = node.path.display();
        (rights(node, user) & wanted != wanted).then(|| {
            Finding::warning(
                subject,
                format!("{} may not {verb} {path} (mode {:04o})", user.name, node.mode & 0o7777),
            )
            .why(
                "opens below it end with `denied`, unless an access list or a capability allows \
                 them",
            )
            .fix(format!("setfacl -m u:{}:{} {path}", user.name, letters(wanted)))
        })
    };
    let enter = way.iter().find_map(|node| closed(node, 1, "enter"));
    let wanted = if it.write { 7 } else { 5 };
    enter.or_else(|| closed(last, wanted, if it.write { "read and write" } else { "read" }))
}

fn letters(rights: u32) -> String {
    [(4, 'r'), (2, 'w'), (1, 'x')]
        .iter()
        .filter(|(bit, _)| rights & bit != 0)
        .map(|(_, it)| it)
        .collect()
}

/// Rights of the user, as the three bits rwx.
pub(super) fn rights(node: &Node, user: &DaemonUser) -> u32 {
    match user.uid {
        0 => 7,
        uid if uid == node.uid => node.mode >> 6 & 7,
        _ if user.groups.contains(&node.gid) => node.mode >> 3 & 7,
        _ => node.mode & 7,
    }
}
