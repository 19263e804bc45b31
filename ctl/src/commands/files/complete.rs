//! `pipectl complete`: how a place on the command line may go on, for the scripts of
//! `pipectl completions`.
//!
//! A shell waits for it at every press of a key, so it takes 200 ms at most and says nothing of
//! what went wrong. Shells take words apart at blanks and obey what stands between backquotes; so
//! a name that is anything else than plain is not offered, whoever chose it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::{Args as ClapArgs, Command, ValueHint};
use clap_complete::Shell;
use piped_client::call::FileKind;
use piped_text::shown;

use super::ls::at_hand;
use super::tree::Tree;
use crate::admin::Admin;
use crate::args::ClientDoor;
use crate::below::Below;
use crate::failure::Failure;
use crate::output::Output;

/// How long a shell waits.
const PATIENCE: Duration = Duration::from_millis(200);

/// Most words that are offered.
const WORDS_MAX: usize = 200;

/// Arguments of `pipectl complete`.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct CompleteArgs {
    /// What stands on the command line so far
    #[arg(default_value = "", allow_hyphen_values = true)]
    word: OsString,

    #[command(flatten)]
    door: ClientDoor,
}

/// Prints the words, each on a line.
pub(crate) fn run(args: &CompleteArgs, admin: &Path, output: &Output) -> Result<(), Failure> {
    let (sender, receiver) = mpsc::channel();
    let (args, admin) = (args.clone(), admin.to_owned());
    let look = move || {
        // Who waited may have gone.
        let _ = sender.send(words(&args, &admin).unwrap_or_default());
    };
    // The end of the program ends a thread that is late.
    let started = thread::Builder::new().name("complete".to_owned()).spawn(look);
    let words = started.ok().and_then(|_| receiver.recv_timeout(PATIENCE).ok());
    let text: String = words.iter().flatten().map(|word| format!("{word}\n")).collect();
    // A shell that has gone on is no failure.
    let _ = output.text(&text);
    Ok(())
}

fn words(args: &CompleteArgs, admin: &Path) -> Option<Vec<String>> {
    let word = args.word.to_str().filter(|word| is_plain(word, "/:"))?;
    let words = match (word.split_once(':'), word.rsplit_once('/')) {
        (Some(_), Some((directory, begun))) => names(args, directory, begun)?,
        // Nodes do not tell each other what they export.
        (Some((peer, _)), None) if !peer.is_empty() => return None,
        _ => nodes(admin)?,
    };
    let fitting = words.into_iter().filter(|it| it.starts_with(word) && is_plain(it, "/:"));
    Some(fitting.take(WORDS_MAX).collect())
}

/// The exports of this node, and its peers.
fn nodes(admin: &Path) -> Option<BTreeSet<String>> {
    let admin = Admin::new(admin).ok()?;
    Some(at_hand(&admin).ok()?.places().collect())
}

/// The names of a directory that go on so.
fn names(args: &CompleteArgs, directory: &str, begun: &str) -> Option<BTreeSet<String>> {
    let place = Below::parse(OsStr::from_bytes(directory.as_bytes())).ok()?;
    let mut tree = Tree::connect(&args.door).ok()?;
    let names = tree.list(&place, false).ok()?.into_iter();
    let names = names.filter(|it| begun.starts_with('.') || !it.name().starts_with(b"."));
    let word = |kind, name: &str| {
        let mark = if kind == FileKind::Directory { "/" } else { "" };
        format!("{directory}/{name}{mark}")
    };
    let names = names.filter_map(|it| Some(word(it.kind(), std::str::from_utf8(it.name()).ok()?)));
    Some(names.collect())
}

/// Whether each shell takes the text for one word, and for nothing but a word.
fn is_plain(text: &str, more: &str) -> bool {
    let is_plain = |it: char| match it.is_ascii() {
        true => it.is_ascii_alphanumeric() || "._-+=@%,".contains(it) || more.contains(it),
        false => shown(it.encode_utf8(&mut [0; 4])).as_bytes() == it.to_string().as_bytes(),
    };
    !text.starts_with(['-', '=']) && text.chars().all(is_plain)
}

/// A script of a shell that completes options and words, with places in it.
pub(crate) fn with_places(script: &str, shell: Shell, command: &Command) -> String {
    let takes_places = |it: &&Command| {
        it.get_arguments().any(|argument| argument.get_value_hint() == ValueHint::Url)
    };
    let commands = command.get_subcommands().filter(takes_places).map(Command::get_name);
    let commands: Vec<&str> = commands.collect();
    match shell {
        Shell::Bash => format!("{script}\n{}", BASH.replace("COMMANDS", &commands.join(" | "))),
        Shell::Zsh => {
            let (first, rest) = script.split_once('\n').unwrap_or((script, ""));
            format!("{first}\n{ZSH}{}", rest.replace(":_urls'", ":_pipectl_places'"))
        }
        Shell::Fish => {
            let lines = commands.iter().map(|name| FISH_COMMAND.replace("COMMAND", name));
            format!("{script}\n{FISH}{}\n", lines.collect::<String>())
        }
        _ => script.to_owned(),
    }
}

/// bash takes words apart at colons, so the word is cut out of the line, and what it has up to the
/// last colon is left away again.
const BASH: &str = r#"# Places (PEER:EXPORT/PATH) come from the daemon; everything else as above.
_pipectl_places() {
    local line=${COMP_LINE:0:COMP_POINT} word command= place front=
    word=${line##*[[:space:]]}
    for command in "${COMP_WORDS[@]:1}" ''; do
        [[ $command == -* ]] || break
    done
    case $command in
        COMMANDS) ;;
        *) command= ;;
    esac
    if [[ -z $command || $word == -* || $word == "$command" ]]; then
        _pipectl "$@"
        return
    fi
    [[ $word == *:* && $COMP_WORDBREAKS == *:* ]] && front=${word%"${word##*:}"}
    COMPREPLY=()
    while IFS= read -r place; do
        COMPREPLY+=("${place#"$front"}")
        [[ $place == *[:/] ]] && compopt -o nospace 2>/dev/null
    done < <(pipectl complete -- "$word" 2>/dev/null)
}
complete -F _pipectl_places -o bashdefault -o default pipectl
"#;

const ZSH: &str = r#"
_pipectl_places() {
    local -a places
    places=(${(f)"$(pipectl complete -- "${(Q)PREFIX}" 2>/dev/null)"})
    (( $#places )) && compadd -S '' -- $places
    [[ $PREFIX == *:* ]] || _files
}
"#;

const FISH: &str = r#"# Places (PEER:EXPORT/PATH) come from the daemon.
function __pipectl_places
    pipectl complete -- (commandline -ct) 2>/dev/null
end
"#;

const FISH_COMMAND: &str = r#"
complete -c pipectl -n "__fish_pipectl_using_subcommand COMMAND" -a "(__pipectl_places)""#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_would_obey_is_not_offered() {
        for name in ["a", "a-b_c.d", "données", "名前", "a%20b", ":data/a"] {
            assert!(is_plain(name, "/:"), "{name}");
        }
        for name in [
            "a b",
            "a;b",
            "$(a)",
            "`a`",
            "a'b",
            "a\\b",
            "-rf",
            "=ls",
            "~a",
            "a\u{202e}b",
            "a\nb",
            "a*",
        ] {
            assert!(!is_plain(name, "/:"), "{name}");
        }
    }
}
