//! `pipectl config`: checks, shows and reloads the configuration.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use piped_config::admin::{
    CONFIG, Change, ConfigState, Configuration, RELOAD, Reloaded, STATUS, Status,
};
use piped_config::{ConfigError, Sources, load};
use piped_text::shown;
use serde::Serialize;
use serde_json::Value;

use crate::admin::Admin;
use crate::args::Args;
use crate::commands::doctor::facts::DaemonUser;
use crate::commands::doctor::gather;
use crate::commands::words;
use crate::failure::{Exit, Failure};
use crate::node::Node;
use crate::output::{self, Output};
use crate::table::Column::Text;
use crate::units;

/// Arguments of `pipectl config`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ConfigArgs {
    /// Action on the configuration
    #[command(subcommand)]
    pub(crate) action: Action,
}

/// Actions on a configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Check a configuration: files, variables, and what they name on this machine
    ///
    /// Reports everything that a start would refuse, with its place: users and groups, directories,
    /// sockets, addresses, CPUs, the key. If you are root, the check runs as the daemon's user.
    /// Without a file, and if a daemon answers at the socket, it checks the files of that daemon as
    /// they are now.
    Check {
        /// The main file [default: that of the daemon that answers, else $PIPED_CONFIG or
        /// /etc/piped/piped.toml]
        file: Option<PathBuf>,
        /// A setting that wins over all files, as in --set shards.count=2
        #[arg(long = "set", value_name = "KEY=VALUE")]
        settings: Vec<String>,
        /// Check the text alone, and nothing that depends on this machine
        #[arg(long)]
        no_filesystem: bool,
        /// The user that the daemon runs as [default: that of the daemon that answers, else piped
        /// if there is one]
        #[arg(long, value_name = "NAME", conflicts_with = "no_filesystem")]
        user: Option<String>,
    },
    /// Show the configuration of the running daemon: every key with its value
    Show {
        /// Show also where each value comes from: default, FILE:LINE, a variable, --set, or runtime
        /// (by pipectl)
        #[arg(long)]
        origin: bool,
    },
    /// Make the daemon load its configuration again: all of it, or nothing with the reason
    Reload,
}

pub(crate) fn run(args: &Args, action: &Action, output: &Output) -> Result<(), Failure> {
    let admin = || Admin::new(&args.socket);
    match action {
        Action::Check { file, settings, no_filesystem, user } => {
            let node = Node::find(args, file.clone(), settings.clone());
            let checked = check(&node.sources, || match no_filesystem {
                true => Ok(None),
                false => user_to_check(args, &node, user.as_deref()).map(Some),
            })?;
            tell(checked, &node, output, args.json)
        }
        Action::Show { origin } => show(&admin()?, output, *origin, args.json),
        Action::Reload => reload(&admin()?, output, args.json),
    }
}

/// JSON printed by `config check --json`.
#[derive(Debug, Serialize)]
struct Checked {
    good: bool,
    files: Vec<String>,
    /// User that the checks ran as; none if the machine was not looked at.
    user: Option<String>,
    findings: Vec<Finding>,
    #[serde(skip)]
    exit: Exit,
}

#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    /// File, variable or option.
    layer: Option<String>,
    line: Option<usize>,
    key: Option<String>,
    message: String,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// The daemon refuses to start.
    Error,
    /// The daemon starts, and something will not work.
    Warning,
    /// Not visible to this program.
    Unknown,
}

/// The user that the daemon runs as.
fn user_to_check(args: &Args, node: &Node, named: Option<&str>) -> Result<DaemonUser, Failure> {
    if let Some(name) = named {
        return gather::user_named(name)
            .ok_or_else(|| Failure::new(Exit::NotFound, format!("there is no user `{name}`")));
    }
    let status = || Admin::new(&args.socket).and_then(|admin| admin.get::<Status>(STATUS)).ok();
    let pid = if node.is_running { status().map(|status| status.pid) } else { None };
    gather::user_of_daemon(pid).ok_or_else(|| Failure::failed("/proc does not name your user"))
}

fn check(
    sources: &Sources,
    find_user: impl FnOnce() -> Result<Option<DaemonUser>, Failure>,
) -> Result<Checked, Failure> {
    let mut checked = Checked {
        good: false,
        files: Vec::new(),
        user: None,
        findings: Vec::new(),
        exit: Exit::Failed,
    };
    match load(sources) {
        Ok(loaded) => {
            checked.files.extend(loaded.files.iter().map(|file| file.display().to_string()));
            if let Some(runs_as) = find_user()? {
                let found = gather::preflight(&loaded, sources, &runs_as);
                let all = [
                    (Level::Error, &found.refused),
                    (Level::Warning, &found.warned),
                    (Level::Unknown, &found.unseen),
                ];
                let all = all
                    .into_iter()
                    .flat_map(|(level, list)| list.iter().map(move |it| (level, it)));
                checked.findings.extend(all.map(|(level, error)| finding(level, error)));
                checked.user = Some(runs_as.name);
            }
        }
        Err(found) => {
            checked.findings.extend(found.all().iter().map(|error| finding(Level::Error, error)));
            // A missing file is reported differently from a wrong one.
            if let [ConfigError::Read { source, .. }] = found.all() {
                checked.exit = Failure::io("", source).exit();
            }
        }
    }
    checked.good = checked.findings.iter().all(|it| it.level != Level::Error);
    Ok(checked)
}

fn tell(checked: Checked, node: &Node, output: &Output, json: bool) -> Result<(), Failure> {
    let count = checked.findings.iter().filter(|it| it.level == Level::Error).count();
    let exit = checked.exit;
    node.say();
    if json {
        output::json(checked)?;
    } else {
        for Finding { level, message, .. } in &checked.findings {
            match level {
                Level::Error => output.line(message)?,
                Level::Warning => output.line(format_args!("warning: {message}"))?,
                Level::Unknown => output.line(format_args!("not looked at: {message}"))?,
            }
        }
        if count == 0 {
            let files = words::list(&checked.files, "the defaults, no file");
            let files = shown(&files);
            let user = match &checked.user {
                Some(user) => format!(", as {user}"),
                None => ", without a look at this machine".to_owned(),
            };
            output.line(format_args!("good: {files}{user}"))?;
        }
    }
    match count {
        0 => Ok(()),
        1 => Err(Failure::new(exit, "the configuration has a mistake: a daemon would refuse it")),
        _ => Err(Failure::failed(format!(
            "the configuration has {count} mistakes: a daemon would refuse it"
        ))),
    }
}

fn finding(level: Level, error: &ConfigError) -> Finding {
    let (place, key) = (error.place(), error.key());
    Finding {
        level,
        layer: place.as_ref().map(|place| place.layer.clone()),
        line: place.and_then(|place| place.line),
        key: key.map(str::to_owned),
        message: error.to_string(),
    }
}

fn show(admin: &Admin, output: &Output, origin: bool, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(admin.get_raw(CONFIG)?);
    }
    let configuration: Configuration = admin.get(CONFIG)?;
    let row = |key: piped_config::admin::ConfigKey| {
        let mut row = vec![key.key, word(&key.value)];
        row.extend(origin.then_some(key.origin));
        row
    };
    let columns = [Text("KEY"), Text("VALUE"), Text("ORIGIN")];
    let columns = if origin { &columns[..] } else { &columns[..2] };
    output.table(columns, configuration.keys.into_iter().map(row).collect())?;
    state(output, &configuration.state)
}

fn reload(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(admin.post_raw(RELOAD)?);
    }
    let reloaded: Reloaded = admin.post(RELOAD)?;
    if reloaded.changed.is_empty() {
        output.line("nothing changed")?;
    }
    for change in &reloaded.changed {
        output.prose(&format!("changed: {}", difference(change)), 2)?;
    }
    let ended = (reloaded.ended_sessions, reloaded.ended_handles);
    if ended != (0, 0) {
        let text = format!(
            "ended, as it is not allowed any more: {} sessions, {} handles",
            ended.0, ended.1
        );
        output.prose(&text, 2)?;
    }
    state(output, &reloaded.state)
}

/// Shows facts that an operator needs beside the keys; also for `pipectl status`.
pub(crate) fn state(output: &Output, state: &ConfigState) -> Result<(), Failure> {
    for change in &state.restart_needed {
        let text = format!("restart needed: {} (`systemctl restart piped`)", difference(change));
        output.prose(&text, 2)?;
    }
    if let Some(refused) = &state.refused_reload {
        let when = units::uptime(refused.seconds_ago);
        output.line(format_args!("reload refused {when} ago, the configuration is as before:"))?;
        refused.error.lines().try_for_each(|line| output.prose(&format!("  {line}"), 4))?;
    }
    Ok(())
}

fn difference(change: &Change) -> String {
    format!("{}: {} -> {}", change.key, word(&change.from), word(&change.to))
}

/// Value as written in a file; null is a key that does not exist.
fn word(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        // A mode with a number, as in fixed:65536.
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| format!("\"{name}:{value}\"")).collect()
        }
        value => value.to_string(),
    }
}
