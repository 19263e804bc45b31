//! What a lab is, and what its nodes say of each other.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::description::{Lab, Member, Network};
use super::down;
use super::remains::{self, Process};
use super::site::Site;
use super::trust::Trust;
use crate::admin::Admin;
use crate::commands::cluster::status::{Contact, View};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};

/// Names that are listed where all others are in the same state.
const LISTED_MAX: usize = 3;

const LEGEND: &str = "up: connections are there. unused: known and trusted; connected to when \
                      something is opened there, and a minute longer. not dialled: not trusted. \
                      -: not known.";

/// What `up` has done.
#[derive(Debug)]
pub(super) enum Began {
    /// The lab was made; on loopback for this reason, if nobody asked for that.
    Made {
        /// Why it is on loopback.
        note: Option<String>,
    },
    /// The lab was there, and has one node more.
    Added {
        /// Name of the node.
        name: String,
    },
    /// The lab was there; these nodes did not run and were started.
    Was {
        /// Names of the nodes.
        started: Vec<String>,
    },
}

/// JSON of `up` and `status`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    directory: String,
    network: Network,
    trust: Trust,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    added: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<&'a [String]>,
    nodes: Vec<Seen<'a>>,
}

impl<'a> Report<'a> {
    fn of(site: &Site, lab: &Lab, nodes: Vec<Seen<'a>>) -> Self {
        let directory = site.directory().display().to_string();
        let (network, trust) = (lab.network(), lab.trust());
        Self { directory, network, trust, note: None, added: None, started: None, nodes }
    }
}

/// A node, and what it says.
#[derive(Debug, Serialize)]
struct Seen<'a> {
    name: &'a str,
    address: String,
    pid: Option<u32>,
    admin_socket: String,
    client_socket: String,
    /// What the node itself knows; none if it does not answer.
    view: Option<View>,
}

impl<'a> Seen<'a> {
    fn of(site: &Site, node: &'a Member, running: &[Process]) -> Self {
        let process = running.iter().find(|process| process.node() == node.name());
        let socket = |name: &str| site.node(node.name()).join(name);
        let ask = || View::of(&Admin::new(&socket("admin.sock"))?);
        Self {
            name: node.name(),
            address: node.address().to_string(),
            pid: process.map(Process::pid),
            admin_socket: socket("admin.sock").display().to_string(),
            client_socket: socket("client.sock").display().to_string(),
            view: process.and_then(|_| ask().ok()),
        }
    }

    /// What is wrong with it, and what helps.
    fn fault(&self) -> Option<String> {
        let Self { name, .. } = self;
        match (self.pid, &self.view) {
            (_, Some(_)) => None,
            (None, None) => Some(format!("{name} does not run: `pipectl lab up` starts it")),
            (Some(pid), None) => Some(format!(
                "{name} (pid {pid}) does not answer: `pipectl lab stop {name}`, then `pipectl lab \
                 up`"
            )),
        }
    }

    /// How it stands to another node, in one word.
    fn to(&self, other: &str) -> &'static str {
        match &self.view {
            _ if self.name == other => "",
            None => "?",
            Some(view) => view.contact(other).map_or("-", Contact::words),
        }
    }
}

fn seen<'a>(site: &Site, lab: &'a Lab) -> Vec<Seen<'a>> {
    let running = remains::processes(site);
    lab.nodes().iter().map(|node| Seen::of(site, node, &running)).collect()
}

/// `pipectl lab status`: the nodes, and who sees whom.
pub(super) fn run(site: &Site, output: &Output, json: bool) -> Result<(), Failure> {
    let lab = down::require(site)?;
    let nodes = seen(site, &lab);
    let faults: Vec<String> = nodes.iter().filter_map(Seen::fault).collect();
    let failure = (!faults.is_empty()).then(|| Failure::failed(faults.join("\n")));
    if json {
        output::json(Report::of(site, &lab, nodes))?;
    } else {
        table(site, &lab, &nodes, output)?;
        who_sees_whom(&nodes, output)?;
    }
    failure.map_or(Ok(()), Err)
}

/// What `up` prints: what is there now, and what to try.
pub(super) fn told(
    site: &Site,
    lab: &Lab,
    began: &Began,
    (dir, output): (Option<&Path>, &Output),
    json: bool,
) -> Result<(), Failure> {
    let nodes = seen(site, lab);
    if json {
        let mut report = Report::of(site, lab, nodes);
        match began {
            Began::Made { note } => report.note = note.as_deref(),
            Began::Added { name } => report.added = Some(name),
            Began::Was { started } => report.started = Some(started),
        }
        return output::json(report);
    }
    let command = Command::of_process(dir);
    match began {
        Began::Added { name } => {
            table(site, lab, &nodes, output)?;
            return joins(lab, name, &command, output);
        }
        Began::Made { note: Some(note) } => output.prose(note, 0)?,
        Began::Made { note: None } => {}
        Began::Was { started } if started.is_empty() => {
            output.prose("The lab is up already.", 0)?;
        }
        Began::Was { started } => {
            output.prose(&format!("The lab was there; started: {}.", started.join(", ")), 0)?;
        }
    }
    table(site, lab, &nodes, output)?;
    next(site, lab, &command, output)
}

fn table(site: &Site, lab: &Lab, nodes: &[Seen<'_>], output: &Output) -> Result<(), Failure> {
    let network = match lab.network() {
        Network::Namespaces => "each in a network of its own (namespaces with a bridge)",
        Network::Loopback => "all on loopback",
    };
    let trust = match lab.trust() {
        Trust::Cluster => format!("of one cluster, whose key {} has", lab.nodes()[0].name()),
        Trust::Pinned => "each with the keys of all others".to_owned(),
    };
    let place = output::path(site.directory());
    output.prose(&format!("{} nodes in {place}, {network}, {trust}", nodes.len()), 2)?;
    output.line("")?;
    let columns = [Text("NODE"), Text("STATE"), Number("PID"), Text("ADDRESS"), Text("VERSION")];
    let rows = nodes.iter().map(|node| {
        let state = match (&node.view, node.pid) {
            (Some(_), _) => "runs",
            (None, Some(_)) => "SILENT",
            (None, None) => "DOWN",
        };
        vec![
            node.name.to_owned(),
            state.to_owned(),
            node.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            node.address.clone(),
            node.view.as_ref().map_or("-", View::version).to_owned(),
        ]
    });
    output.table(&columns, rows.collect())
}

/// Each node's view of each other one, as a table where there is room for it.
fn who_sees_whom(nodes: &[Seen<'_>], output: &Output) -> Result<(), Failure> {
    if nodes.len() < 2 {
        return Ok(());
    }
    output.heading("Who sees whom (a row is what a node says of the others)")?;
    let words = nodes.iter().flat_map(|node| nodes.iter().map(|other| node.to(other.name)));
    let cell = nodes.iter().map(|node| node.name).chain(words).map(str::len).max().unwrap_or(0) + 2;
    let needed = (nodes.len() + 1) * cell;
    if output.width().is_none_or(|width| usize::from(width) >= needed) {
        let line = |first: &str, cells: &mut dyn Iterator<Item = &str>| {
            let cells: String = cells.map(|it| format!("{it:cell$}")).collect();
            format!("{first:cell$}{cells}").trim_end().to_owned()
        };
        output.line(line("", &mut nodes.iter().map(|node| node.name)))?;
        for node in nodes {
            output.line(line(node.name, &mut nodes.iter().map(|other| node.to(other.name))))?;
        }
    } else {
        for node in nodes {
            let others = nodes.iter().filter(|other| other.name != node.name);
            let views = others.map(|other| (other.name, node.to(other.name)));
            output.prose(&format!("{}: {}", node.name, grouped(views)), 2)?;
        }
    }
    output.prose(LEGEND, 0)
}

/// What a node says of others, by what it says: of many of one kind it says "all others".
fn grouped<'a>(views: impl Iterator<Item = (&'a str, &'static str)>) -> String {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    views.for_each(|(name, words)| groups.entry(words).or_default().push(name));
    let mut groups: Vec<(&str, Vec<&str>)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, names)| names.len());
    let last = groups.len().saturating_sub(1);
    let words = groups.iter().enumerate().map(|(number, (words, names))| {
        let all = number == last && names.len() > LISTED_MAX;
        let names = if all { "all others".to_owned() } else { names.join(", ") };
        format!("{names} {words}")
    });
    words.collect::<Vec<_>>().join("; ")
}

/// This program as it was called, for commands to be typed next.
struct Command {
    program: String,
    /// The option that names the lab's directory, if this line had it.
    dir: String,
}

impl Command {
    fn of_process(dir: Option<&Path>) -> Self {
        Self {
            program: std::env::args().next().unwrap_or_else(|| "pipectl".to_owned()),
            dir: dir.map_or_else(String::new, |dir| format!(" --dir {}", output::path(dir))),
        }
    }

    fn lab(&self, rest: &str) -> String {
        format!("{} lab{} {rest}", self.program, self.dir)
    }
}

/// Commands by which a node that was added joins.
fn joins(lab: &Lab, name: &str, command: &Command, output: &Output) -> Result<(), Failure> {
    let first = lab.nodes()[0].name();
    output.line("")?;
    output.prose(&format!("{name} runs, and no node trusts it: nobody has signed its key."), 0)?;
    output.heading("To have it join")?;
    let token = command.lab(&format!("exec {first} -- pipectl cluster token create"));
    let join = command.lab(&format!("exec {name} -- piped join -"));
    shown(
        output,
        [
            (format!("{token} | {join}"), "a token of the node that signs, to the one that joins"),
            (command.lab(&format!("exec {name} -- pipectl config reload")), "its daemon takes it"),
            (
                command.lab(&format!("exec {first} -- pipectl cat {name}:data/hello")),
                "from then on they trust each other",
            ),
        ],
    )
}

/// Commands to try next, with this program as it was called.
fn next(site: &Site, lab: &Lab, command: &Command, output: &Output) -> Result<(), Failure> {
    let Command { program, .. } = command;
    let first = lab.nodes()[0].name();
    let last = lab.nodes()[lab.nodes().len() - 1].name();
    let place = output::path(&site.node(first)).into_owned();
    output.heading("Next")?;
    // A node that is alone has the export itself.
    let other = if first == last { "" } else { last };
    let add = (command.lab("add"), "a node more, which joins the cluster by a token");
    let commands = [
        (command.lab("status"), "who sees whom"),
        (
            command.lab(&format!("exec {first} -- pipectl cat {other}:data/hello")),
            "the file that is there from the start",
        ),
        (
            format!("{program} --socket {place}/admin.sock cluster status"),
            "what one node knows of the others",
        ),
        (
            format!("{program} ls --client-socket {place}/client.sock {other}:data"),
            "sockets work from outside, too",
        ),
        (command.lab(&format!("exec {first}")), "a shell where that node is"),
        (command.lab(&format!("stop {last}")), "a node less; `lab up` has it back"),
    ];
    let add = (lab.trust() == Trust::Cluster).then_some(add);
    let end = (command.lab("down"), "all of it is removed");
    shown(output, commands.into_iter().chain(add).chain([end]))
}

/// Prints commands, each with what it is for.
fn shown(
    output: &Output,
    commands: impl IntoIterator<Item = (String, &'static str)>,
) -> Result<(), Failure> {
    for (command, what) in commands {
        output.line(format_args!("  {command}"))?;
        output.prose(&format!("      {what}"), 6)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn many_of_one_kind_are_all_others() {
        let few = [("n2", "up"), ("n3", "unused")];
        assert_eq!(grouped(few.into_iter()), "n3 unused; n2 up");
        let many =
            [("a", "unused"), ("b", "up"), ("c", "unused"), ("d", "unused"), ("e", "unused")];
        assert_eq!(grouped(many.into_iter()), "b up; all others unused");
        assert_eq!(grouped(many[..1].iter().copied()), "a unused");
    }
}
