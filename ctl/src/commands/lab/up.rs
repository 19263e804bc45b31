//! `pipectl lab up`: makes a lab, or starts again what does not run of one.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use clap::Args as ClapArgs;
use piped_config::admin::nodes::{NODES as NODES_PATH, Nodes};
use piped_netns::{Switch, switch};

use super::description::{self, Lab, Member, Network};
use super::remains::{self, Remains};
use super::site::Site;
use super::status::Began;
use super::trust::Trust;
use super::{down, files, status};
use crate::admin::Admin;
use crate::clock;
use crate::daemon::{self, Node, Setting, interrupted};
use crate::failure::{Exit, Failure};
use crate::interrupts::Interrupts;
use crate::output::{Output, Progress};

/// Most nodes: each is a daemon with its threads and its staging memory.
pub(super) const NODES_MAX: u16 = 64;
const NODES_DEFAULT: usize = 3;

/// Port of each node on its own host.
const PORT: u16 = 7440;

/// Time until all daemons answer, and have heard of all others: so much, and so much for each.
const START: Duration = Duration::from_secs(15);
const START_EACH: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Arguments of `pipectl lab up`.
#[derive(Debug, ClapArgs)]
pub(super) struct UpArgs {
    /// How many nodes [default: 3, or those of the lab that is there]
    #[arg(short, long, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=i64::from(NODES_MAX)))]
    nodes: Option<u16>,
    /// Have all nodes on loopback, also where each could have a network of its own
    #[arg(long)]
    loopback: bool,
    /// Have each node pin the keys of all others, instead of a cluster's key that signs theirs
    #[arg(long)]
    pinned: bool,
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
    let work = Work::new(site, &piped, &interrupts, &progress);
    let asked = args.nodes.map(usize::from);
    if let Some(lab) = Lab::at(site)? {
        require_same(&lab, asked, args)?;
        let started = work.start_missing(&lab);
        progress.clear();
        let began = Began::Was { started: started? };
        return status::told(site, &lab, &began, (dir, output), json);
    }
    let remains = Remains::of(site)?;
    if !remains.is_clear() {
        return Err(down::broken(&remains));
    }
    let made = work.all(asked.unwrap_or(NODES_DEFAULT), args);
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
fn require_same(lab: &Lab, asked: Option<usize>, args: &UpArgs) -> Result<(), Failure> {
    let (there, is_loopback) = (lab.nodes().len(), lab.network() == Network::Loopback);
    let is_pinned = lab.trust() == Trust::Pinned;
    let other = match asked {
        Some(asked) if asked != there => format!("has {there} nodes, not {asked}"),
        _ if args.loopback && !is_loopback => "is in namespaces, not on loopback".to_owned(),
        _ if args.pinned && !is_pinned => "is a cluster, and pins no keys".to_owned(),
        _ => return Ok(()),
    };
    let words = format!("the lab that is there {other}: end it with `pipectl lab down` first");
    Err(Failure::new(Exit::Refused, words))
}

/// What `up` and `add` work with.
pub(super) struct Work<'a> {
    site: &'a Site,
    piped: &'a Path,
    interrupts: &'a Interrupts,
    progress: &'a Progress,
}

impl<'a> Work<'a> {
    /// Work at a place with the daemon's program `piped`.
    pub(super) const fn new(
        site: &'a Site,
        piped: &'a Path,
        interrupts: &'a Interrupts,
        progress: &'a Progress,
    ) -> Self {
        Self { site, piped, interrupts, progress }
    }

    /// Makes a lab; and why it is on loopback, if nobody asked for that.
    fn all(&self, count: usize, args: &UpArgs) -> Result<(Lab, Option<String>), Failure> {
        let (lab, note) = self.make(count, args)?;
        let nodes = self.start(&lab, lab.nodes())?;
        let nodes = self.await_ready(&lab, lab.nodes(), nodes)?;
        nodes.into_iter().for_each(Node::leave);
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
            return Err(network_is_gone(gone.name()));
        }
        let started = self
            .start(lab, &missing)
            .and_then(|nodes| self.await_ready(lab, lab.nodes(), nodes))
            .map_err(|failure| self.of_interrupt(failure))?;
        started.into_iter().for_each(Node::leave);
        Ok(missing.iter().map(|it| it.name().to_owned()).collect())
    }

    /// The failure of work on a lab that was there before, which stays.
    pub(super) fn of_interrupt(&self, failure: Failure) -> Failure {
        match self.interrupts.came() {
            true => Failure::new(Exit::Interrupted, "interrupted; what ran before still runs"),
            false => failure,
        }
    }

    /// Names of daemons that run. What begins, or ends with an `up` that was killed, has done so
    /// first.
    pub(super) fn settled(&self, lab: &Lab) -> Result<Vec<String>, Failure> {
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
    pub(super) fn start(&self, lab: &Lab, nodes: &[Member]) -> Result<Vec<Node>, Failure> {
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

    /// Waits until these nodes answer and have heard of all of the lab, and gives back those that
    /// were started.
    pub(super) fn await_ready(
        &self,
        lab: &Lab,
        nodes: &[Member],
        mut started: Vec<Node>,
    ) -> Result<Vec<Node>, Failure> {
        let all = nodes.len();
        let mut waiting: Vec<&Member> = nodes.iter().collect();
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
                return Ok(started);
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
    fn make(&self, count: usize, args: &UpArgs) -> Result<(Lab, Option<String>), Failure> {
        let names = description::names(count);
        let (network, note) = match args.loopback {
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
        let trust = if args.pinned { Trust::Pinned } else { Trust::Cluster };
        let lab = Lab::new(network, trust, &addresses(network, 0..count)?);
        files::write_all(self.site, &lab, self.interrupts)?;
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

/// Failure for a lab whose namespaces went with the machine that had them.
pub(super) fn network_is_gone(node: &str) -> Failure {
    Failure::failed(format!(
        "the network of {node} is gone, as after a start of the machine: remove what is left with \
         `pipectl lab down`"
    ))
}

/// Where nodes of these numbers, counted from 0, are to listen.
pub(super) fn addresses(network: Network, hosts: Range<usize>) -> Result<Vec<SocketAddr>, Failure> {
    match network {
        Network::Namespaces => Ok(hosts.map(|host| (switch::address(host), PORT).into()).collect()),
        Network::Loopback => free_addresses(hosts.len()),
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
