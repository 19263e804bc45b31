//! The configuration that a command is about: that of a named file; else that of the daemon at the
//! socket; else, without a daemon, the one with which the service would start.

use std::path::{Path, PathBuf};

use piped_config::Sources;
use piped_config::admin::{CONFIG, Configuration};
use piped_text::{shown, shown_lines};

use crate::admin::Admin;
use crate::args::Args;
use crate::failure::Failure;
use crate::output;

/// A configuration, and where it comes from.
#[derive(Debug)]
pub(crate) struct Node {
    /// Layers of the configuration.
    pub(crate) sources: Sources,
    /// Whether they belong to a running daemon.
    pub(crate) is_running: bool,
    /// Words for the configuration, for one line.
    pub(crate) what: String,
    /// Reason why another one was taken than the user may have meant; printed beside the result.
    pub(crate) note: Option<String>,
}

impl Node {
    /// Finds the configuration that `file`, the socket or the variables name. `settings` are the
    /// last layer, as with `--set`.
    pub(crate) fn find(args: &Args, file: Option<PathBuf>, settings: Vec<String>) -> Self {
        let variable = || std::env::var_os("PIPED_CONFIG").map(PathBuf::from);
        let file = match file {
            Some(file) => Some(file),
            // A daemon that was named counts more than a variable.
            None if args.socket_is_named => None,
            None => variable(),
        };
        if let Some(file) = file {
            let what = output::path(&file).into_owned();
            return Self { note: None, ..Self::of_files(Some(file), settings, what) };
        }
        let socket = output::path(&args.socket);
        let asked = of_daemon(&args.socket);
        let why = match asked {
            Ok(Configuration { sources: Some(report), state, .. }) => {
                let mut sources = Sources::from(report);
                sources.overrides.extend(settings);
                let files = if state.files.is_empty() {
                    "the defaults, no file".to_owned()
                } else {
                    shown(&state.files.join(", ")).into_owned()
                };
                let what = format!("the configuration of the daemon at {socket} ({files})");
                return Self { sources, is_running: true, note: Some(what.clone()), what };
            }
            Ok(_) => format!("the daemon at {socket} was started without files"),
            Err(failure) => failure.to_string(),
        };
        let file = variable();
        let main_file = Sources { file: file.clone(), ..Sources::default() };
        let main_file = output::path(main_file.main_file());
        let what = format!("{main_file}, as it would be started with");
        let mut node = Self::of_files(file, settings, what);
        // A user that named no daemon, where none runs, knows what is meant.
        node.note = args.socket_is_named.then(|| format!("{why}; so this is {}", node.what));
        node.note.get_or_insert_with(|| format!("no daemon answers: {}", node.what));
        node
    }

    fn of_files(file: Option<PathBuf>, settings: Vec<String>, what: String) -> Self {
        let sources = Sources::of_process(file, settings);
        Self { sources, is_running: false, what, note: None }
    }

    /// Tells on stderr which configuration is used, unless the user has named it.
    pub(crate) fn say(&self) {
        use std::io::Write as _;
        if let Some(note) = &self.note {
            let _ = writeln!(std::io::stderr(), "{}", shown_lines(note));
        }
    }
}

/// Asks the daemon at `socket` for its configuration. Its files are read and written by these
/// paths, so the texts are not escaped.
pub(crate) fn of_daemon(socket: &Path) -> Result<Configuration, Failure> {
    Admin::new(socket)?.get_exact(CONFIG)
}

/// Advice where to write a key so that it holds after the next start, asked for when the key has
/// changed. The text is only shown.
pub(crate) fn how_to_keep(admin: &Admin, key: &str) -> String {
    let Ok(configuration) = admin.get::<Configuration>(CONFIG) else {
        return format!(
            "To keep it, set {key} in the daemon's configuration: `pipectl config show --origin` \
             says where."
        );
    };
    let row = configuration.keys.iter().find(|row| row.key == key);
    let origin = row.map(|row| row.configured.as_ref().unwrap_or(&row.origin));
    let origin = origin.filter(|it| !["default", "runtime"].contains(&it.as_str()));
    match (origin, configuration.sources) {
        (Some(origin), _) if origin.starts_with("PIPED_") || origin.starts_with("--set") => {
            format!("At its next start {origin} says what {key} is: to keep it, change it there.")
        }
        (Some(origin), _) => format!("To keep it, change {key} in {origin}."),
        (None, Some(sources)) => {
            format!("To keep it, set {key} in {}.", sources.main_file.display())
        }
        (None, None) => {
            format!("It cannot be kept: the daemon was started without files to set {key} in.")
        }
    }
}
