//! Collects facts about what this node proves itself by: its key, and its certificate of a cluster.

use std::path::{Path, PathBuf};
use std::{fs, io};

use piped_config::admin::Status;
use piped_config::admin::cluster::{CLUSTER, ClusterReport};
use piped_config::{AutoPath, Cluster, Config, NodeCertificate, UnixTime, host_name, read_text};

use super::facts::{ClusterFacts, KeyFacts, Node, Paper};
use crate::admin::Admin;
use crate::clock;

/// Facts about a file with a private key, which is not read.
pub(super) fn key(path: PathBuf) -> KeyFacts {
    let found = fs::metadata(&path);
    let is_missing = found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    KeyFacts { node: found.ok().map(|it| Node::of(&path, &it)), is_missing, path }
}

/// Facts about this node in its cluster; none without a cluster.
pub(super) fn cluster(
    config: &Config,
    main_file: &Path,
    (daemon, socket): (Option<&Status>, &Path),
) -> Option<ClusterFacts> {
    let cluster = Some(&config.cluster).filter(|cluster| cluster.is_on())?;
    let written = cluster.certificate_path(Some(main_file));
    let kept = state_directory(config, daemon.map(|status| status.pid));
    let kept = kept.map(|directory| directory.join(Cluster::CERTIFICATE_FILE));
    let ask = |_: &Status| Admin::new(socket).and_then(|it| it.get::<ClusterReport>(CLUSTER)).ok();
    let name = daemon.map(|status| status.node.clone());
    Some(ClusterFacts {
        now: UnixTime(clock::calendar()),
        name: name.unwrap_or_else(|| config.node.name_or(&host_name()).to_owned()),
        key: daemon.and_then(|status| status.public_key),
        paper: latest([written.as_deref(), kept.as_deref()].into_iter().flatten()),
        path: written.or(kept),
        signing_key: cluster.signing_key_path(Some(main_file)).map(key),
        report: daemon.and_then(ask),
    })
}

/// The certificate that was signed last, of those in these files; else why there is none.
fn latest<'a>(paths: impl Iterator<Item = &'a Path>) -> Paper {
    let mut found = Paper::Missing;
    for path in paths {
        let read = match read_text(path) {
            Ok(text) => text.parse::<NodeCertificate>().map_err(|error| error.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                if found == Paper::Missing {
                    found = Paper::Closed;
                }
                continue;
            }
            Err(error) => Err(error.to_string()),
        };
        found = match (read, found) {
            (Ok(read), Paper::There(other)) if !read.is_later_than(&other) => Paper::There(other),
            (Ok(read), _) => Paper::There(Box::new(read)),
            (Err(_), there @ Paper::There(_)) => there,
            (Err(why), _) => Paper::Unreadable(why),
        };
    }
    found
}

/// Directory of the daemon's state, where it writes what it renews.
fn state_directory(config: &Config, pid: Option<u32>) -> Option<PathBuf> {
    match &config.node.state_dir {
        AutoPath::None => None,
        AutoPath::At(path) => Some(path.clone()),
        AutoPath::Auto => {
            let variables = fs::read(format!("/proc/{}/environ", pid?)).ok()?;
            let mut variables = variables.split(|byte| *byte == 0);
            let listed = variables.find_map(|it| it.strip_prefix(b"STATE_DIRECTORY="))?;
            let first = listed.split(|byte| *byte == b':').next()?;
            Some(PathBuf::from(std::str::from_utf8(first).ok()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use piped_config::{NodeKey, Period, SigningKey, Subject};

    use super::*;

    fn certificate(now: u64) -> NodeCertificate {
        let by = SigningKey::generate().expect("random");
        let key = NodeKey::generate().expect("random").public();
        let times = (UnixTime(now), Period::seconds(1000));
        let subject = Subject::new((key, "alpha"), Vec::new(), times.0, times.1);
        NodeCertificate::issue(subject, &by).expect("a certificate")
    }

    #[test]
    fn the_certificate_that_was_signed_last_is_looked_at() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let (early, late) = (certificate(10_000), certificate(20_000));
        fs::write(at("early"), format!("{early}\n")).expect("a file");
        fs::write(at("late"), format!("{late}\n")).expect("a file");
        fs::write(at("other"), "nothing of this kind\n").expect("a file");
        let found = |names: &[&str]| {
            let paths: Vec<PathBuf> = names.iter().map(|name| at(name)).collect();
            latest(paths.iter().map(PathBuf::as_path))
        };
        let late = Paper::There(Box::new(late));
        for names in [&["early", "late"][..], &["late", "early"], &["other", "late", "gone"]] {
            assert_eq!(found(names), late, "{names:?}");
        }
        assert_eq!(found(&["late", "other"]), late);
        assert!(matches!(found(&["gone", "other"]), Paper::Unreadable(_)));
        assert_eq!(found(&["gone"]), Paper::Missing);
    }
}
