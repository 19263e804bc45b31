//! `pipectl lab up`: makes a lab, or starts again what does not run of one.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use clap::Args as ClapArgs;
use piped_config::admin::nodes::{NODES as NODES_PATH, Nodes};
use piped_netns::{Switch, switch};

use super::description::{self, Lab, Member, Network};
use super::remains::{self, Remains};
use super::site::{NODES, Site};
use super::status::Began;
use super::trust::{self, Identity};
use super::{down, status};
use crate::admin::Admin;
use crate::clock;
use crate::daemon::{self, Node, Setting, interrupted, quoted};
use crate::failure::{Exit, Failure};
use crate::interrupts::Interrupts;
use crate::output::{self, Output, Progress};

/// Most nodes: each is a daemon with its threads and its staging memory.
const NODES_MAX: i64 = 64;
const NODES_DEFAULT: usize = 3;

/// Port of each node on its own host.
const PORT: u16 = 7440;

/// Export of each node, and the file in it.
const EXPORT: &str = "data";
const FILE: &str = "hello";

/// Time until all daemons answer, and have heard of all others: so much, and so much for each.
const START: Duration = Duration::from_secs(15);
const START_EACH: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Staging memory of all nodes together, and the least and most of one of them.
const STAGING_ALL: u64 = 512 << 20;
const STAGING_MIN: u64 = 8 << 20;
const STAGING_MAX: u64 = 64 << 20;
/// Unit in which the daemon takes staging.
const STAGING_STEP: u64 = 4 << 20;

/// Arguments of `pipectl lab up`.
#[derive(Debug, ClapArgs)]
pub(super) struct UpArgs {
    /// How many nodes [default: 3, or those of the lab that is there]
    #[arg(short, long, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=NODES_MAX))]
    nodes: Option<u16>,
    /// Have all nodes on loopback, also where each could have a network of its own
    #[arg(long)]
    loopback: bool,
}

pub(super) fn run(
    site: &Site,
    args: &UpArgs,
    (dir, output): (Option<&Path>, &Output),
    json: bool,
) -> Result<(), Failure> {
    let interrupts = Interrupts::listen()?;
    let piped = daemon::find_piped()?;
    let claim = site.claim()?;
    let progress = Progress::new(!json);
    let work = Work { site, piped: &piped, interrupts: &interrupts, progress: &progress };
    let asked = args.nodes.map(usize::from);
    if let Some(lab) = Lab::at(site)? {
        require_same(&lab, asked, args.loopback)?;
        let started = work.start_missing(&lab);
        progress.clear();
        let began = Began::Was { started: started? };
        return status::told(site, &lab, &began, (dir, output), json);
    }
    let remains = Remains::of(site)?;
    if !remains.is_clear() {
        return Err(down::broken(&remains));
    }
    let made = work.all(asked.unwrap_or(NODES_DEFAULT), args.loopback);
    progress.clear();
    let (lab, note) = made.map_err(|failure| {
        // Whatever it was, nothing stays. A program that Ctrl-C ended too is not to blame.
        let failure = if interrupts.came() { interrupted() } else { failure };
        match Remains::of(site).and_then(|remains| remains.remove(site, Some(claim))) {
            Ok(()) => failure,
            Err(left) => failure.and(left).and("`pipectl lab down` removes what is left"),
        }
    })?;
    status::told(site, &lab, &Began::Made { note }, (dir, output), json)
}

/// Refuses to take a lab for another one than is asked for.
fn require_same(lab: &Lab, asked: Option<usize>, loopback: bool) -> Result<(), Failure> {
    let (there, is_loopback) = (lab.nodes().len(), lab.network() == Network::Loopback);
    let other = match asked {
        Some(asked) if asked != there => format!("has {there} nodes, not {asked}"),
        _ if loopback && !is_loopback => "is in namespaces, not on loopback".to_owned(),
        _ => return Ok(()),
    };
    let words = format!("the lab that is there {other}: end it with `pipectl lab down` first");
    Err(Failure::new(Exit::Refused, words))
}

/// What `up` works with.
struct Work<'a> {
    site: &'a Site,
    piped: &'a Path,
    interrupts: &'a Interrupts,
    progress: &'a Progress,
}

impl Work<'_> {
    /// Makes a lab; and why it is on loopback, if nobody asked for that.
    fn all(&self, count: usize, loopback: bool) -> Result<(Lab, Option<String>), Failure> {
        let (lab, note) = self.make(count, loopback)?;
        let nodes = self.start(&lab, lab.nodes())?;
        self.await_ready(&lab, nodes)?;
        Ok((lab, note))
    }

    /// Starts daemons of a lab that do not run; their names.
    fn start_missing(&self, lab: &Lab) -> Result<Vec<String>, Failure> {
        let running = self.settled(lab)?;
        let runs = |node: &&Member| running.iter().any(|name| name == node.name());
        let missing: Vec<Member> = lab.nodes().iter().filter(|it| !runs(it)).cloned().collect();
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        if lab.network() == Network::Namespaces
            && let Some(gone) = missing.iter().find(|it| !self.site.namespace(it.name()).exists())
        {
            let words = format!(
                "the network of {} is gone, as after a start of the machine: remove what is left \
                 with `pipectl lab down`",
                gone.name()
            );
            return Err(Failure::failed(words));
        }
        let started = self.start(lab, &missing).and_then(|nodes| self.await_ready(lab, nodes));
        started.map_err(|failure| match self.interrupts.came() {
            true => Failure::new(Exit::Interrupted, "interrupted; what ran before still runs"),
            false => failure,
        })?;
        Ok(missing.iter().map(|it| it.name().to_owned()).collect())
    }

    /// Names of daemons that run. What begins, or ends with an `up` that was killed, has done so
    /// first.
    fn settled(&self, lab: &Lab) -> Result<Vec<String>, Failure> {
        let deadline = clock::now() + START + START_EACH * lab.nodes().len() as u32;
        loop {
            self.interrupts.check()?;
            let running = remains::processes(self.site);
            let names: Vec<String> = running.iter().map(|it| it.node().to_owned()).collect();
            if names.iter().all(|name| answers(self.site, name)) || clock::now() > deadline {
                return Ok(names);
            }
            clock::pause(LOOK_AGAIN);
        }
    }

    /// Starts daemons, which end with their owner until they are left.
    fn start(&self, lab: &Lab, nodes: &[Member]) -> Result<Vec<Node>, Failure> {
        let namespace = |name: &str| match lab.network() {
            Network::Namespaces => Some(self.site.namespace(name)),
            Network::Loopback => None,
        };
        let start = |node: &Member| {
            self.interrupts.check()?;
            let setting = Setting::new(node.name(), self.site.node(node.name()))?;
            Node::start(self.piped, &setting.inside(namespace(node.name())))
        };
        nodes.iter().map(start).collect()
    }

    /// Waits until all nodes answer and have heard of all others, and leaves those that were
    /// started.
    fn await_ready(&self, lab: &Lab, mut started: Vec<Node>) -> Result<(), Failure> {
        let all = lab.nodes().len();
        let mut waiting: Vec<&Member> = lab.nodes().iter().collect();
        let deadline = clock::now() + START + START_EACH * all as u32;
        let mut why = String::new();
        loop {
            self.interrupts.check()?;
            started.iter_mut().try_for_each(Node::check)?;
            waiting.retain(|node| match has_heard_of_all(self.site, lab, node) {
                Ok(()) => false,
                Err(reason) => {
                    why = format!("{}: {reason}", node.name());
                    true
                }
            });
            if waiting.is_empty() {
                started.into_iter().for_each(Node::leave);
                return Ok(());
            }
            self.progress.say(format_args!("starting: {} of {all}", all - waiting.len()));
            if clock::now() > deadline {
                let words = format!("the nodes are not ready: {why}");
                return Err(Failure::new(Exit::Timeout, words));
            }
            clock::pause(LOOK_AGAIN);
        }
    }

    /// Makes all but the daemons; and why it is on loopback, if nobody asked for that.
    fn make(&self, count: usize, loopback: bool) -> Result<(Lab, Option<String>), Failure> {
        let names = description::names(count);
        let (network, note) = match loopback {
            true => (Network::Loopback, None),
            false => match self.switch(&names) {
                Ok(switch) => {
                    switch.keep();
                    (Network::Namespaces, None)
                }
                Err(why) => (Network::Loopback, Some(why)),
            },
        };
        // Where Ctrl-C was why.
        self.interrupts.check()?;
        let note = note.map(|why| {
            format!("All nodes are on loopback: they have no networks of their own, because {why}.")
        });
        let addresses = match network {
            Network::Namespaces => {
                (0..count).map(|host| (switch::address(host), PORT).into()).collect()
            }
            Network::Loopback => free_addresses(count)?,
        };
        let lab = Lab::new(network, &addresses);
        self.write(&lab)?;
        lab.keep(self.site)?;
        Ok((lab, note))
    }

    /// Namespaces for these nodes and what joins them, or why there are none.
    fn switch(&self, names: &[String]) -> Result<Switch, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root may make network namespaces".to_owned());
        }
        let mut switch = Switch::new(self.site.prefix()).map_err(|error| error.to_string())?;
        for (number, name) in names.iter().enumerate() {
            self.progress.say(format_args!("networks: {number} of {}", names.len()));
            self.interrupts.check().map_err(|failure| failure.to_string())?;
            switch.join(name).map_err(|error| error.to_string())?;
        }
        Ok(switch)
    }

    /// Writes keys, exports, configurations, and where each node is.
    fn write(&self, lab: &Lab) -> Result<(), Failure> {
        let make = |path: &Path| {
            fs::create_dir_all(path).map_err(|error| Failure::io(output::path(path), &error))
        };
        let identities = lab.nodes().iter().map(|node| {
            self.interrupts.check()?;
            let directory = self.site.node(node.name());
            make(&directory.join(EXPORT))?;
            Identity::make(node.name(), &directory)
        });
        let identities: Vec<Identity> = identities.collect::<Result<_, Failure>>()?;
        let nodes = self.site.node(NODES);
        make(&nodes)?;
        let staging = (STAGING_ALL / lab.nodes().len() as u64).clamp(STAGING_MIN, STAGING_MAX);
        let staging = staging / STAGING_STEP * STAGING_STEP;
        for node in lab.nodes() {
            let (name, directory) = (node.name(), self.site.node(node.name()));
            let data = directory.join(EXPORT);
            let fail = |error| Failure::io(format_args!("cannot set up node {name}"), &error);
            fs::write(data.join(FILE), format!("This is {name}.\n")).map_err(fail)?;
            let version = env!("CARGO_PKG_VERSION");
            let said = format!(
                "address = \"{}\"\nexports = [\"{EXPORT}\"]\nversion = \"{version}\"\n",
                node.address()
            );
            fs::write(nodes.join(format!("{name}.toml")), said).map_err(fail)?;
            let setting = Setting::new(name, directory.clone())?.listens(node.address());
            let mut setting = setting.exports(EXPORT, &data)?;
            setting.set(&format!("exports.{EXPORT}.write"), true);
            setting.set(&format!("exports.{EXPORT}.names"), true);
            setting.set("discovery.files", quoted(&nodes)?);
            // Many daemons on few CPUs: none of them shall stay on one.
            setting.set("shards.pin", false);
            setting.set("planner.allow_dials", true);
            setting.set("limits.global.staging", format_args!("\"{}MiB\"", staging >> 20));
            trust::trust_all(&mut setting, &directory, &identities)?;
            setting.write()?;
        }
        Ok(())
    }
}

/// Whether a daemon serves its operators.
fn answers(site: &Site, name: &str) -> bool {
    let asked = Admin::new(&site.node(name).join("admin.sock"));
    asked.and_then(|admin| admin.get::<Nodes>(NODES_PATH)).is_ok()
}

/// Why a node is not ready, if it is not.
fn has_heard_of_all(site: &Site, lab: &Lab, node: &Member) -> Result<(), Failure> {
    let admin = Admin::new(&site.node(node.name()).join("admin.sock"))?;
    let heard: Nodes = admin.get(NODES_PATH)?;
    let is_heard = |other: &&Member| heard.nodes.iter().any(|it| it.node == other.name());
    match lab.nodes().iter().find(|other| other.name() != node.name() && !is_heard(other)) {
        Some(other) => Err(Failure::failed(format!("it has not heard of {}", other.name()))),
        None => Ok(()),
    }
}

/// Addresses on loopback that were free a moment ago: held until all are found, so that none is
/// found twice.
fn free_addresses(count: usize) -> Result<Vec<SocketAddr>, Failure> {
    let bind = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listeners: std::io::Result<Vec<TcpListener>> = (0..count).map(bind).collect();
    let addresses = listeners.and_then(|all| all.iter().map(TcpListener::local_addr).collect());
    addresses.map_err(|error| Failure::io("no free ports on 127.0.0.1", &error))
}
