//! `piped join`: takes this node into a cluster, before a daemon runs or beside one.

use std::io::{BufRead as _, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use piped_config::program::JoinArgs;
use piped_config::{
    CLUSTER_DROP_IN, Cluster, Config, HostPort, JoinToken, NodeKey, Sources, cluster_drop_in,
    host_name, key_file_group, load,
};
use piped_control::keyring::Keyring;

use crate::cluster::issue::{Joined, Request};
use crate::io::clock;
use crate::peer::join;
use crate::replace::replace;

/// Longest line with a token and an address.
const LINE_BYTES_MAX: u64 = 1024;

/// Joins, and says on standard error what was written.
///
/// # Errors
/// Why this node is not in the cluster, and the fix; nothing has changed but perhaps a key that was
/// made.
pub fn join(sources: &Sources, asked: &JoinArgs) -> Result<(), String> {
    let (token, at) = target(&asked.target)?;
    // Files that are wrong for want of what joining brings are no reason to refuse it.
    let config = load(sources).map(|loaded| loaded.config).unwrap_or_default();
    let name = match &asked.name {
        Some(name) => name.clone(),
        None => config.node.name_or(&host_name()).to_owned(),
    };
    let place = config.security.key_place(sources.main_file());
    let made = NodeKey::read_or_make(&place, key_file_group());
    let (own, is_new) = made.map_err(|error| error.to_string())?;
    let joined = ask(&own, &token, &at, &name)?;
    check(&own, &name, &joined)?;
    let certificate = sources.main_file().with_file_name(Cluster::CERTIFICATE_FILE);
    write(&certificate, &format!("{}\n", joined.certificate))?;
    let drop_in = sources.drop_ins().join(CLUSTER_DROP_IN);
    let named = (config.node.name != name).then_some(name.as_str());
    write(&drop_in, &cluster_drop_in(&joined.keys, named, Some((&at, token.issuer()))))?;
    if is_new {
        say("a key of this node was made (`pipectl keys show`)");
    }
    let groups = match joined.certificate.subject().groups.as_slice() {
        [] => "no group".to_owned(),
        groups => groups.join(", "),
    };
    say(&format!("{}, {}: written", certificate.display(), drop_in.display()));
    say(&format!(
        "this node is {name} of the cluster, in {groups}. A daemon that runs takes it with: \
         pipectl config reload"
    ));
    Ok(())
}

fn target(text: &str) -> Result<(JoinToken, HostPort), String> {
    let mut line = String::new();
    if text == "-" {
        let read = std::io::stdin().lock().take(LINE_BYTES_MAX).read_line(&mut line);
        read.map_err(|error| format!("standard input cannot be read: {error}"))?;
    } else {
        text.clone_into(&mut line);
    }
    // What `token create` prints is a command.
    let line = line.trim().trim_start_matches("piped join ").trim();
    let (token, at) = line.split_once('@').ok_or(
        "write the token and where the node listens that signs: TOKEN@HOST:PORT, as `pipectl \
         cluster token create` printed it there",
    )?;
    // Neither is printed: one of them is the secret.
    let token = token.parse().map_err(|error| format!("what is before the @ {error}"))?;
    let at: HostPort = at.parse().map_err(|error| format!("{error}"))?;
    match at.is_empty() {
        true => Err("write HOST:PORT behind the @: where the node listens that signs".to_owned()),
        false => Ok((token, at)),
    }
}

fn ask(own: &NodeKey, token: &JoinToken, at: &HostPort, name: &str) -> Result<Joined, String> {
    let secret = Some(token.secret().to_vec());
    let request = Request { name: name.to_owned(), token: secret, own: None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let asked = join::ask(own, token.issuer(), at.as_str(), &request);
        let answer = tokio::time::timeout(join::TIME, asked).await;
        answer.map_err(|_| format!("{at} did not answer in time"))?
    })
}

/// Whether what came is a certificate for this node: who gave it is known, and may be wrong.
fn check(own: &NodeKey, name: &str, joined: &Joined) -> Result<(), String> {
    let subject = joined.certificate.subject();
    if subject.key != own.public() || subject.name != name {
        return Err("what was signed is for another node".to_owned());
    }
    let mut config = Config::default();
    config.cluster.keys.clone_from(&joined.keys);
    config.validate().map_err(|fault| format!("`{}` {}", fault.key, fault.problem))?;
    let keyring = Keyring::new(&config, Some(own.clone()));
    let keyring = keyring.map_err(|fault| format!("`{}` {}", fault.key, fault.problem))?;
    let identity = keyring.identity().ok_or("this node has no key")?;
    let counts = identity.check(&joined.certificate, clock::times().calendar);
    counts.map_err(|why| format!("what was signed does not count here: {why}"))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    // The daemon is another user, and certificates are public.
    let written = replace(path, text.as_bytes(), 0o644)
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)));
    written
        .map_err(|error| format!("{} cannot be written ({error}); are you root?", path.display()))
}

fn say(text: &str) {
    eprintln!("{}", piped_text::shown(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_token_and_address_is_refused_without_showing_it() {
        let issuer = NodeKey::generate().expect("random").public();
        let token = JoinToken::generate(issuer).expect("random");
        let right = format!("{token}@10.9.0.1:7440");
        for text in [right.clone(), format!("piped join {right}\n")] {
            let (read, at) = target(&text).expect("both are there");
            assert_eq!((read, at.as_str()), (token.clone(), "10.9.0.1:7440"));
        }
        let wrong =
            [format!("{token}"), format!("{token}@"), format!("{token}@host"), "@h:1".into()];
        for text in wrong {
            let error = target(&text).expect_err(&text);
            assert!(!error.contains(&token.to_string()), "{error}");
        }
    }
}
