//! `pipectl support-dump`: one file with the facts that help to mend piped, and without private
//! ones.
//!
//! Its parts are listed here, and nothing else gets in: no file of the machine is copied, the
//! environment is not read, and of the configuration there are the keys of [`config::SHOWN`]. All
//! texts pass [`redact`], which takes out paths and everything that looks like a key.

mod config;
mod redact;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args as ClapArgs;
use piped_config::admin::dials::DIALS;
use piped_config::admin::limits::LIMITS;
use piped_config::admin::watch::{EXPORTS, PEERS, STAT, TRANSFERS, TRANSFERS_ENDED};
use piped_config::admin::{CLIENTS, CONFIG, EXPLAIN, METRICS, STAGES, STATUS};
use piped_text::{shown_json, shown_lines};
use serde::Serialize;
use serde_json::{Value, json};

use self::redact::Redactor;
use super::doctor::{Report, gather};
use crate::admin::Admin;
use crate::args::Args;
use crate::clock;
use crate::failure::Failure;
use crate::output::{self, Output};

/// Most lines of the journal.
const JOURNAL_LINES: &str = "2000";
/// Most bytes of another program's output.
const SAID_BYTES_MAX: usize = 4 << 20;

/// Arguments of `pipectl support-dump`.
#[derive(Debug, ClapArgs)]
pub(crate) struct SupportArgs {
    /// The file to make (a tar archive); an existing one is not overwritten
    #[arg(default_value = "piped-support.tar")]
    file: PathBuf,

    /// Leave paths, and names of regions and channels, as they are
    #[arg(long)]
    show_paths: bool,

    /// The configuration's main file [default: the running daemon's, $PIPED_CONFIG, or
    /// /etc/piped/piped.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// JSON printed by `support-dump --json`.
#[derive(Debug, Serialize)]
struct Made {
    file: PathBuf,
    parts: Vec<String>,
    missing: Vec<String>,
}

/// Questions to the daemon, each with the name of its file.
const ASKED: [(&str, &str); 12] = [
    (STATUS, "status.json"),
    (STAGES, "stages.json"),
    (STAT, "stat.json"),
    (LIMITS, "limits.json"),
    (PEERS, "peers.json"),
    (CLIENTS, "clients.json"),
    (TRANSFERS, "transfers.json"),
    (TRANSFERS_ENDED, "transfers-ended.json"),
    (DIALS, "dials.json"),
    (EXPORTS, "exports.json"),
    (CONFIG, "config.json"),
    ("", "explain-last.json"),
];

pub(crate) fn run(args: &Args, asked: &SupportArgs, output: &Output) -> Result<(), Failure> {
    // Make the file first, because that may fail.
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&asked.file);
    let file = file.map_err(|error| {
        let failure = Failure::io(asked.file.display(), &error);
        match error.kind() {
            io::ErrorKind::AlreadyExists => {
                failure.and("name another file, as in: pipectl support-dump FILE.tar")
            }
            _ => failure,
        }
    })?;
    let (mut parts, missing) = gather_all(args, asked);
    parts.insert(0, ("README.txt".to_owned(), readme(asked.show_paths, &missing)));
    let written = write(file, &parts).map_err(|error| Failure::io(asked.file.display(), &error));
    if written.is_err() {
        // Half an archive is of no use.
        let _ = fs::remove_file(&asked.file);
    }
    written?;
    let parts: Vec<String> = parts.into_iter().map(|(name, _)| name).collect();
    if args.json {
        return output::json(Made { file: asked.file.clone(), parts, missing });
    }
    output.line(format_args!("{}: {}", asked.file.display(), parts.join(", ")))?;
    for line in &missing {
        output.prose(&format!("without {line}"), 2)?;
    }
    let hint = match asked.show_paths {
        true => "Paths and names are in it as they are: look at it before you pass it on.",
        false => {
            "Paths, names of regions and channels and whatever looks like a key were taken out; \
             names of nodes, users and exports, and addresses, are in it: look at it before you \
             pass it on."
        }
    };
    output.prose(hint, 0)
}

/// Names and texts of the parts, and the parts that are missing.
fn gather_all(args: &Args, asked: &SupportArgs) -> (Vec<(String, String)>, Vec<String>) {
    let facts = gather::gather(args, asked.config.clone());
    let redactor =
        if asked.show_paths { Redactor::keys_only() } else { Redactor::new(facts.paths()) };
    let (mut parts, mut missing) = (Vec::new(), Vec::new());
    let pretty = |value: &Value| format!("{value:#}\n");
    let mut add = |name: &str, value: Value| {
        parts.push((name.to_owned(), pretty(&redactor.value(value))));
    };
    add("versions.json", versions());
    add("facts.json", json(&facts));
    add("doctor.json", json(Report::of(&facts)));
    match Admin::new(&args.socket) {
        Ok(admin) if facts.is_served() => {
            for (path, name) in ASKED {
                let path = if path.is_empty() { format!("{EXPLAIN}last") } else { path.to_owned() };
                match admin.get_raw(&path) {
                    Ok(value) => add(name, allowed(name, value, asked.show_paths)),
                    Err(failure) => missing.push(format!("{name}: {failure}")),
                }
            }
            match admin.get_text(METRICS) {
                Ok(text) => parts.push(("metrics.txt".to_owned(), redactor.text(&text))),
                Err(failure) => missing.push(format!("metrics.txt: {failure}")),
            }
        }
        Ok(_) => {
            missing.push("what the daemon says: none answers (doctor.json says why)".to_owned());
            if let Some(keys) = facts.keys() {
                add("config.json", config::of_file(keys));
            }
        }
        Err(failure) => missing.push(failure.to_string()),
    }
    for (name, program, arguments) in [
        (
            "journal.txt",
            "journalctl",
            &["-u", "piped", "-n", JOURNAL_LINES, "--no-pager", "-o", "short-iso"][..],
        ),
        ("unit.txt", "systemctl", &["show", "piped", "--no-pager", "-p", UNIT_PROPERTIES]),
    ] {
        match said(program, arguments) {
            Ok(text) => parts.push((name.to_owned(), redactor.text(&text))),
            Err(why) => missing.push(format!("{name}: {why}")),
        }
    }
    (parts, missing.iter().map(|line| redactor.text(line)).collect())
}

/// Properties of the unit that are about its process; its environment is not read.
const UNIT_PROPERTIES: &str = "ActiveState,SubState,Result,NRestarts,ExecMainStatus,\
    ExecMainCode,WatchdogUSec,\
    LimitMEMLOCK,LimitNOFILE,MemoryMax,MemoryPeak,CPUQuotaPerSecUSec,User,Group,TasksCurrent";

fn json(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// Part of an answer that may be in the bundle.
fn allowed(name: &str, mut value: Value, show_names: bool) -> Value {
    match name {
        "config.json" => config::of_daemon(value),
        // These names were chosen by clients.
        "exports.json" if !show_names => {
            for list in ["regions", "channels"] {
                let entries = value.get_mut(list).and_then(Value::as_array_mut);
                for entry in entries.into_iter().flatten() {
                    entry["name"] = json!("<name>");
                }
            }
            value
        }
        _ => value,
    }
}

fn versions() -> Value {
    let kernel = rustix::system::uname();
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let of = |key: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(key));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    json!({
        "pipectl": env!("CARGO_PKG_VERSION"),
        "kernel": kernel.release().to_string_lossy(),
        "build": kernel.version().to_string_lossy(),
        "machine": kernel.machine().to_string_lossy(),
        "system": [of("ID="), of("VERSION_ID=")],
        "taken_seconds_since_1970": clock::calendar(),
    })
}

/// Output of a program, if it exists and prints anything.
fn said(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program}: {}", text.lines().next().unwrap_or("it failed")));
    }
    // The end tells more than the beginning.
    let from = output.stdout.len().saturating_sub(SAID_BYTES_MAX);
    Ok(String::from_utf8_lossy(&output.stdout[from..]).into_owned())
}

fn readme(show_paths: bool, missing: &[String]) -> String {
    let taken_out = match show_paths {
        true => "Taken out: whatever looks like a key.",
        false => {
            "Taken out: paths (<path-N>, the same one by the same number), names of regions and \
             channels, whatever looks like a key."
        }
    };
    let missing: String = missing.iter().map(|line| format!("Without {line}\n")).collect();
    format!(
        "What pipectl {} found out about a piped daemon, to help mend it.\n{taken_out}\nNever in \
         it: files of the machine, the environment, keys, data.\n{missing}",
        env!("CARGO_PKG_VERSION")
    )
}

fn write(file: fs::File, parts: &[(String, String)]) -> io::Result<()> {
    let mut archive = tar::Builder::new(file);
    for (name, text) in parts {
        // The file may be read on a terminal.
        let text = if name.ends_with(".json") { shown_json(text) } else { shown_lines(text) };
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(clock::calendar());
        archive.append_data(&mut header, format!("piped-support/{name}"), text.as_bytes())?;
    }
    let mut file = archive.into_inner()?;
    file.flush()?;
    file.sync_all()
}
