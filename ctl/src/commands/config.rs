//! `pipectl config`: what the configuration is, whether it is good, and loading it again.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use piped_config::admin::{CONFIG, Change, ConfigState, Configuration, RELOAD, Reloaded};
use piped_config::{ConfigError, Loaded, NodeKey, Place, Sources, load};
use serde::Serialize;
use serde_json::Value;

use crate::admin::Admin;
use crate::args::Args;
use crate::commands::words;
use crate::failure::{Exit, Failure};
use crate::output::{self, Output};
use crate::table::Column::Text;
use crate::units;

/// `pipectl config`
#[derive(Debug, ClapArgs)]
pub(crate) struct ConfigArgs {
    /// What to do
    #[command(subcommand)]
    pub(crate) action: Action,
}

/// What can be done with a configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Check a configuration without a daemon: the file, its conf.d and PIPED_*
    ///
    /// Users, groups and directories that it names are looked up by the daemon, at its start and at a reload.
    Check {
        /// The main file [default: $PIPED_CONFIG, or /etc/piped/piped.toml if it exists]
        file: Option<PathBuf>,
        /// A setting that wins over all files, as in --set shards.count=2
        #[arg(long = "set", value_name = "KEY=VALUE")]
        settings: Vec<String>,
    },
    /// Show the configuration of the running daemon: every key with its value
    Show {
        /// Also where each value comes from: default, FILE:LINE, a variable, --set, or runtime (by pipectl)
        #[arg(long)]
        origin: bool,
    },
    /// Have the daemon load its configuration again: all of it, or nothing and why
    Reload,
}

pub(crate) fn run(args: &Args, action: &Action, output: &Output) -> Result<(), Failure> {
    let admin = || Admin::new(&args.socket);
    match action {
        Action::Check { file, settings } => check(file.clone(), settings, output, args.json),
        Action::Show { origin } => show(&admin()?, output, *origin, args.json),
        Action::Reload => reload(&admin()?, output, args.json),
    }
}

/// What `config check --json` prints.
#[derive(Debug, Serialize)]
struct Checked {
    good: bool,
    files: Vec<String>,
    findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct Finding {
    /// The file, the variable or the option.
    layer: Option<String>,
    line: Option<usize>,
    key: Option<String>,
    message: String,
}

fn check(
    file: Option<PathBuf>,
    settings: &[String],
    output: &Output,
    json: bool,
) -> Result<(), Failure> {
    let file = file.or_else(|| std::env::var_os("PIPED_CONFIG").map(PathBuf::from));
    let sources = Sources::of_process(file, settings.to_vec());
    let (mut files, mut findings, mut exit) = (Vec::new(), Vec::new(), Exit::Failed);
    match load(&sources) {
        Ok(loaded) => {
            files.extend(loaded.files.iter().map(|file| file.display().to_string()));
            findings.extend(of_keys(&loaded, &sources));
        }
        Err(found) => {
            findings.extend(found.all().iter().map(finding));
            // A file that is not there is another thing than one that is wrong.
            if let [ConfigError::Read { source, .. }] = found.all() {
                exit = Failure::io("", source).exit();
            }
        }
    }
    let count = findings.len();
    if json {
        output::json(Checked { good: count == 0, files, findings })?;
    } else {
        findings.iter().try_for_each(|finding| output.line(&finding.message))?;
        if count == 0 {
            output.line(format_args!("good: {}", words::list(&files, "the defaults, no file")))?;
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

/// What is wrong with this node's key, or for want of one. A file that only the daemon may read is not looked into.
fn of_keys(loaded: &Loaded, sources: &Sources) -> Option<Finding> {
    let path = loaded.config.security.key_path(Some(sources.main_file()));
    let own = match path.map(|path| NodeKey::read(&path)).transpose() {
        Ok(own) => own,
        Err(error) if error.is_denied() => return None,
        Err(error) => {
            let (key, message) = ("security.key_file", format!("security.key_file: {error}"));
            return Some(Finding { layer: None, line: None, key: Some(key.to_owned()), message });
        }
    };
    let fault = loaded.config.check_own_key(own.map(|own| own.public())).err()?;
    let place = loaded.origins.get(&fault.key).cloned().unwrap_or_else(Place::defaults);
    Some(finding(&ConfigError::Invalid { place, key: fault.key, problem: fault.problem }))
}

fn finding(error: &ConfigError) -> Finding {
    let (place, key) = (error.place(), error.key());
    Finding {
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
    state(output, &reloaded.state)
}

/// What an operator has to know beside the keys; also for `pipectl status`.
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

/// A value as it is written in a file; null is a key that is not there.
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
