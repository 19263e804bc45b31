//! `piped`: arguments to configuration to daemon to exit code.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use piped::{Daemon, Inherited};
use piped_config::program::{Args, Command};
use piped_config::{Findings, Loaded, Look, MADE_BY_UNIT, Names, Sources, load, preflight};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

fn main() -> ExitCode {
    // Before anything is opened: passed descriptors are only told from others by that.
    let inherited = Inherited::take();
    // Before anything is secret: no core holds it, and programs of the same user cannot look.
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        eprintln!("piped: its memory can be read by other programs of its user ({error})");
    }
    match run(Args::parse(), inherited) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("piped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(
    args: Args,
    inherited: std::io::Result<Inherited>,
) -> Result<(), Box<dyn std::error::Error>> {
    let file = args.config.or_else(|| std::env::var_os("PIPED_CONFIG").map(PathBuf::from));
    let sources = Sources::of_process(file, args.settings);
    if let Some(Command::Join(asked)) = args.command {
        return Ok(piped::join(&sources, &asked)?);
    }
    let loaded = load(&sources)?;
    if args.check_config {
        return check(&loaded, &sources, args.no_filesystem);
    }
    let set_level = piped::log::start(&loaded.config.log.level)?;
    for file in &loaded.files {
        tracing::info!(file = %file.display(), "configuration");
    }
    let drop_ins = sources.main_file().exists().then(|| sources.drop_ins());
    let daemon = Daemon::reloading(loaded, sources, Some(set_level));
    let inherited = inherited.map_err(|error| format!("LISTEN_FDS: {error}"))?;
    // Before the first other thread.
    Ok(daemon.with_drop_ins(drop_ins).with_inherited(inherited).sandboxed()?.run()?)
}

/// Checks a configuration as a start would, by the present user.
fn check(
    loaded: &Loaded,
    sources: &Sources,
    no_filesystem: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    if !no_filesystem {
        let names = Names::of_system();
        let uid = rustix::process::geteuid().as_raw();
        let user = names.user(uid).map_or_else(|| uid.to_string(), str::to_owned);
        let look = Look {
            main_file: Some(sources.main_file()),
            user: &user,
            is_user: true,
            made: vec![PathBuf::from(MADE_BY_UNIT)],
            ..Look::default()
        };
        let found = preflight(loaded, &names, &look);
        for warning in &found.warned {
            eprintln!("warning: {warning}");
        }
        Findings::none_or(found.refused)?;
    }
    println!("the configuration is good");
    Ok(())
}
