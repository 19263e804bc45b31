//! `pipectl keys`: this node's key, and those of the nodes that it trusts.
//!
//! Everything is kept in files: the key in `node.key`, and a drop-in for each trusted node. So it
//! works before a daemon has ever run, and an editor can show, copy and undo the results.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Subcommand};
use piped_config::admin::{STATUS, Status};
use piped_config::{
    DAEMON_GROUP, HostPort, KeyFileError, Loaded, NodeKey, PublicKey, Security, Sources,
    key_file_group, load,
};
use serde::Serialize;
use toml_edit::{DocumentMut, Item, Table, value};

use crate::admin::Admin;
use crate::args::Args;
use crate::failure::{Exit, Failure};
use crate::node::Node;
use crate::output::{self, Output};
use crate::table::Column::Text;

/// Arguments of `pipectl keys`.
#[derive(Debug, ClapArgs)]
pub(crate) struct KeysArgs {
    /// The daemon's main file [default: that of the daemon that answers, else $PIPED_CONFIG or
    /// /etc/piped/piped.toml]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Action on the keys
    #[command(subcommand)]
    action: Action,
}

/// The actions on keys.
#[derive(Debug, Subcommand)]
enum Action {
    /// Make this node's key, and print its public half for the other nodes
    ///
    /// Only the owner of the file and the daemon's group can read the private half. A key that
    /// exists is never replaced.
    Generate {
        /// The file [default: what security.key_file says, or node.key beside the main file]
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Print this node's public key
    Show {
        /// The file [default: what security.key_file says; else the running daemon is asked]
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Trust a node: only the owner of this key can use its name, and lanes to and from it are
    /// sealed
    ///
    /// Writes a drop-in beside the main file. The daemon takes it with `pipectl config reload`.
    Trust {
        /// The name that the node gives itself (its node.name)
        name: String,
        /// The key that `pipectl keys show` prints on that node
        key: String,
        /// Where the node listens; without it, the node only connects to this one
        #[arg(long, value_name = "HOST:PORT")]
        address: Option<HostPort>,
        /// Make it the node's next key: its present key is trusted as well, until this one is
        /// trusted without --next
        #[arg(long)]
        next: bool,
    },
    /// Trust a node no longer: its lanes close with the next `pipectl config reload`
    Distrust {
        /// The name of the node
        name: String,
    },
    /// List the nodes that are trusted, with their keys
    List,
}

pub(crate) fn run(args: &Args, asked: &KeysArgs, output: &Output) -> Result<(), Failure> {
    let node = Node::find(args, asked.config.clone(), Vec::new());
    let sources = &node.sources;
    if !matches!(asked.action, Action::Show { file: Some(_) } | Action::Generate { file: Some(_) })
    {
        node.say();
    }
    match &asked.action {
        Action::Generate { file } => generate(sources, file.as_deref(), output, args.json),
        Action::Show { file } => show(args, &node, file.as_deref(), output),
        Action::Trust { name, key, address, next } => {
            trust(sources, name, (*next, key), address.as_ref(), output)
        }
        Action::Distrust { name } => distrust(sources, name, output),
        Action::List => list(sources, output, args.json),
    }
}

/// JSON that `--json` prints of a key.
#[derive(Debug, Serialize)]
struct Shown {
    public_key: PublicKey,
}

fn generate(
    sources: &Sources,
    file: Option<&Path>,
    output: &Output,
    json: bool,
) -> Result<(), Failure> {
    let usual = || sources.main_file().with_file_name(Security::KEY_FILE);
    let path = match file {
        Some(file) => file.to_owned(),
        // The key may be needed before the rest of the configuration is good.
        None => configured(sources).ok().flatten().unwrap_or_else(usual),
    };
    let key = NodeKey::generate().map_err(|error| Failure::io("no key was made", &error))?;
    let group = key_file_group();
    key.write(&path, group).map_err(refused)?;
    let note = match group {
        Some(_) => format!("for root and the group {DAEMON_GROUP}"),
        None => "for you alone; the daemon must run as you to read it".to_owned(),
    };
    say(format_args!(
        "{}: the private key, {note}. Other nodes trust this one with",
        output::path(&path)
    ));
    let in_use = configured(sources).ok().flatten().filter(|it| *it != path && it.exists());
    match in_use {
        // The old key is in use until the file is moved there.
        Some(_) => say(format_args!("  pipectl keys trust NAME {} --next", key.public())),
        None => say(format_args!("  pipectl keys trust NAME {} --address HOST:PORT", key.public())),
    }
    print(key.public(), output, json)
}

fn show(args: &Args, node: &Node, file: Option<&Path>, output: &Output) -> Result<(), Failure> {
    let sources = &node.sources;
    let usual = || sources.main_file().with_file_name(Security::KEY_FILE);
    let path = match file {
        Some(file) => Some(file.to_owned()),
        None => configured(sources).unwrap_or_else(|_| Some(usual())),
    };
    let key = match path.as_deref().map(NodeKey::read) {
        Some(Ok(key)) => key.public(),
        Some(Err(error)) if file.is_some() || !error.is_denied() => return Err(refused(error)),
        // A user that may not read the file may ask the daemon, which has read it.
        other => of_daemon(args).map_err(|failure| match other {
            Some(Err(error)) => refused(error),
            _ => failure,
        })?,
    };
    if file.is_none() && node.is_running {
        match of_daemon(args) {
            Ok(in_use) if in_use == key => {}
            Ok(in_use) => say(format_args!(
                "the daemon still shows itself by {in_use}: pipectl config reload"
            )),
            Err(_) => say("the daemon has not taken it yet: pipectl config reload"),
        }
    }
    print(key, output, args.json)
}

fn of_daemon(args: &Args) -> Result<PublicKey, Failure> {
    let none = "this node has no key; make one: sudo pipectl keys generate";
    let Status::<serde_json::Value> { public_key, .. } = Admin::new(&args.socket)
        .and_then(|admin| admin.get(STATUS))
        .map_err(|failure| failure.and(format_args!("\nand {none}")))?;
    public_key.ok_or_else(|| Failure::new(Exit::NotFound, none))
}

fn print(public_key: PublicKey, output: &Output, json: bool) -> Result<(), Failure> {
    if json { output::json(Shown { public_key }) } else { output.line(public_key) }
}

fn trust(
    sources: &Sources,
    name: &str,
    (is_next, key): (bool, &str),
    address: Option<&HostPort>,
    output: &Output,
) -> Result<(), Failure> {
    let place = if is_next { "next_key" } else { "key" };
    let key: PublicKey = key.parse().map_err(|error| Failure::usage(format!("`{key}` {error}")))?;
    let path = drop_in_of(sources, name)?;
    let before = std::fs::read_to_string(&path).ok();
    let present = load(sources).ok();
    let was_good = present.is_some();
    let known = present.and_then(|it| it.config.peers.get(name).cloned()).unwrap_or_default();
    // An earlier change is not finished: the node may have that key by now, and would be locked
    // out.
    if is_next && let Some(other) = known.next_key.filter(|other| *other != key) {
        return Err(Failure::failed(format!(
            "{other} is to be {name}'s next key already: if the node has it now (`pipectl keys \
             show` there), first `pipectl keys trust {name} {other}`; if it never got it, `pipectl \
             keys trust {name} KEY` with the one it has, and without `next_key` in {}",
            output::path(&path)
        )));
    }
    // Trusting its present key again keeps the next one.
    let keeps_next = known.key == Some(key);
    let text = before.as_deref().unwrap_or("");
    write(&path, &text_of(text, name, (place, key), keeps_next, address)?)?;
    let restore = || match &before {
        Some(text) => write(&path, text),
        None => remove(&path),
    };
    // Refuse now what the daemon would refuse later; but faults that existed before are no reason.
    match load(sources) {
        Err(findings) if was_good => {
            restore()?;
            return Err(Failure::failed(format!("nothing was changed, for then:\n{findings}")));
        }
        Err(findings) => say(format_args!("the configuration is not good yet:\n{findings}")),
        Ok(loaded) => {
            let peer = loaded.config.peers.get(name);
            let effect = peer.and_then(|peer| if is_next { peer.next_key } else { peer.key });
            if effect != Some(key) {
                restore()?;
                let origin = origin_of(&loaded, name, place);
                return Err(Failure::failed(format!(
                    "nothing was changed, for {origin} has another `{place}` of {name}, and \
                     counts: change it there"
                )));
            }
        }
    }
    let verb = if before.is_some() { "changed" } else { "written" };
    output.line(format_args!("{}: {verb}", output::path(&path)))?;
    if configured(sources).is_ok_and(|path| path.is_none()) {
        say("this node has no key of its own yet: sudo pipectl keys generate");
    }
    say("a running daemon takes it with: pipectl config reload");
    Ok(())
}

fn distrust(sources: &Sources, name: &str, output: &Output) -> Result<(), Failure> {
    let path = drop_in_of(sources, name)?;
    let before = std::fs::read_to_string(&path).ok();
    let removed = before.is_some();
    if removed {
        remove(&path)?;
    }
    let loaded = match (load(sources), before) {
        (Ok(loaded), _) => loaded,
        // A daemon that refuses its configuration would go on trusting the node.
        (Err(findings), Some(text)) => {
            write(&path, &text)?;
            return Err(Failure::failed(format!(
                "{name} IS TRUSTED STILL: without its key the configuration is refused; remove \
                 [peers.{name}] where it has its address, then try again\n{findings}"
            )));
        }
        (Err(findings), None) => return Err(Failure::failed(findings.to_string())),
    };
    if removed {
        output.line(format_args!("{}: removed", output::path(&path)))?;
    }
    let still = loaded.config.peers.get(name).and_then(|peer| peer.key);
    if let Some(key) = still {
        let place = origin_of(&loaded, name, "key");
        return Err(Failure::failed(format!(
            "{name} is trusted still, with {key}, by {place}: remove it there"
        )));
    }
    if !removed {
        return Err(Failure::new(Exit::NotFound, format!("no key of a node `{name}` is trusted")));
    }
    say("a running daemon closes its lanes with: pipectl config reload");
    Ok(())
}

/// JSON printed by `list --json`.
#[derive(Debug, Serialize)]
struct List {
    trusted: Vec<Trusted>,
}

#[derive(Debug, Serialize)]
struct Trusted {
    name: String,
    key: PublicKey,
    next_key: Option<PublicKey>,
    address: Option<String>,
    origin: String,
    /// Origin of the next key.
    next_origin: Option<String>,
}

fn list(sources: &Sources, output: &Output, json: bool) -> Result<(), Failure> {
    let loaded = load(sources).map_err(|findings| Failure::failed(findings.to_string()))?;
    let trusted = |(name, peer): (&String, &piped_config::Peer)| {
        Some(Trusted {
            name: name.clone(),
            key: peer.key?,
            next_key: peer.next_key,
            address: Some(peer.address.as_str().to_owned()).filter(|it| !it.is_empty()),
            origin: origin_of(&loaded, name, "key"),
            next_origin: peer.next_key.map(|_| origin_of(&loaded, name, "next_key")),
        })
    };
    let nodes: Vec<Trusted> = loaded.config.peers.iter().filter_map(trusted).collect();
    if json {
        return output::json(List { trusted: nodes });
    }
    if nodes.is_empty() {
        return output.prose("No node is trusted by its key: see `pipectl keys trust`.", 0);
    }
    let rows = nodes.into_iter().flat_map(|it| {
        let address = it.address.unwrap_or_else(|| "-".to_owned());
        let next = it.next_key.map(|key| {
            let origin = it.next_origin.unwrap_or_default();
            vec![it.name.clone(), key.to_string(), "next".to_owned(), address.clone(), origin]
        });
        let now = vec![it.name, it.key.to_string(), "now".to_owned(), address, it.origin];
        std::iter::once(now).chain(next)
    });
    let columns = [Text("NAME"), Text("KEY"), Text("USE"), Text("ADDRESS"), Text("FROM")];
    output.table(&columns, rows.collect())
}

/// Layer that has set a key of a peer.
fn origin_of(loaded: &Loaded, name: &str, field: &str) -> String {
    let origin = loaded.origins.get(&format!("peers.{name}.{field}"));
    origin.map_or_else(|| "elsewhere".to_owned(), ToString::to_string)
}

/// Path of the key in the configuration, if there is one.
fn configured(sources: &Sources) -> Result<Option<PathBuf>, Failure> {
    let loaded = load(sources).map_err(|findings| Failure::failed(findings.to_string()))?;
    Ok(loaded.config.security.key_path(Some(sources.main_file())))
}

/// Path of a node's drop-in. The name becomes part of it, so names that no node can have are
/// refused first.
fn drop_in_of(sources: &Sources, name: &str) -> Result<PathBuf, Failure> {
    piped_config::check_node_name(name).map_err(Failure::usage)?;
    Ok(sources.drop_ins().join(format!("50-peer-{name}.toml")))
}

/// Text of the drop-in with this key in its place. An address in `before` stays, unless there is a
/// new one; so does the next key, if that is wanted.
fn text_of(
    before: &str,
    name: &str,
    (place, key): (&str, PublicKey),
    keeps_next: bool,
    address: Option<&HostPort>,
) -> Result<String, Failure> {
    let wrong =
        || Failure::failed("its drop-in is no TOML any more, or has no table there: remove it");
    let mut document: DocumentMut = before.parse().map_err(|_| wrong())?;
    let peers = document.entry("peers").or_insert_with(|| {
        let mut peers = Table::new();
        peers.set_implicit(true);
        Item::Table(peers)
    });
    let peers = peers.as_table_mut().ok_or_else(wrong)?;
    let peer = peers.entry(name).or_insert_with(|| Item::Table(Table::new()));
    let peer = peer.as_table_mut().ok_or_else(wrong)?;
    if let Some(address) = address {
        peer.insert("address", value(address.as_str()));
    }
    if !keeps_next {
        peer.remove("next_key");
    }
    peer.insert(place, value(key.to_string()));
    let head =
        "# A node that is trusted by its key (`pipectl keys trust`, `pipectl keys distrust`).\n";
    Ok(if before.is_empty() { format!("{head}{document}") } else { document.to_string() })
}

/// Replaces the file as a whole.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let written = || {
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(text.as_bytes())?;
        // The daemon is another user, and public keys are public.
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    written().map_err(|error: std::io::Error| {
        Failure::io(format_args!("{} cannot be written", output::path(path)), &error)
    })
}

fn remove(path: &Path) -> Result<(), Failure> {
    let removed = std::fs::remove_file(path);
    removed.map_err(|error| {
        Failure::io(format_args!("{} cannot be removed", output::path(path)), &error)
    })
}

pub(super) fn refused(error: KeyFileError) -> Failure {
    let exit = match &error {
        KeyFileError::Io { error, .. } => Failure::io("", error).exit(),
        _ => Exit::Failed,
    };
    Failure::new(exit, error.to_string())
}

/// Prints for people, beside the output for programs.
pub(super) fn say(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{}", piped_text::shown_lines(&text.to_string()));
}
