//! `log.level`: levels, and directives for parts of the daemon.
//!
//! `EnvFilter`, which filters the log, takes a bare word that is no level for a target, shows all
//! of that target, and hides everything else: `level = "warning"` ended the log. So only levels and
//! parts of the daemon get there.

use tracing_subscriber::EnvFilter;

use crate::keys::nearest;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Name of the daemon among log targets.
const CRATE: &str = "piped";

/// Parts of the daemon that write to the log (`piped::PART`); a test of the daemon compares them
/// with its sources.
pub const LOG_PARTS: [&str; 19] = [
    "admin",
    "client",
    "cluster",
    "connection",
    "control",
    "daemon",
    "discovery",
    "io",
    "kept",
    "limiting",
    "log",
    "metrics",
    "peer",
    "preflight",
    "reload",
    "shard",
    "systemd",
    "unix_socket",
    "watchdog",
];

/// Checks that the log can be filtered as the text means it.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let levels = || LEVELS.join(", ");
    if text.trim().is_empty() {
        return Err(format!("is empty: write one of {}", levels()));
    }
    let mut rest = None::<&str>;
    for directive in text.split(',').map(str::trim) {
        if directive.is_empty() {
            return Err(format!("is `{text}`, where something is missing beside a comma"));
        }
        if directive.contains(['[', '{']) {
            return Err(format!(
                "has `{directive}`: piped has no spans; write {CRATE}::PART=LEVEL, as in \
                 info,piped::peer=debug"
            ));
        }
        match directive.split_once('=') {
            Some((target, level)) => {
                is_level(level.trim(), directive)?;
                is_part(target.trim())?;
            }
            None if is_target(directive) => {
                is_part(directive)?;
                return Err(format!(
                    "has `{directive}` without a level: write {directive}=debug, or one of {} \
                     behind the `=`",
                    levels()
                ));
            }
            None => {
                is_level(directive, directive)?;
                if let Some(other) = rest.replace(directive) {
                    return Err(format!("has the levels `{other}` and `{directive}`: write one"));
                }
            }
        }
    }
    if rest.is_none() {
        return Err(format!(
            "is `{text}`, which says nothing of all other parts, so their warnings would not be \
             shown: begin with a level for them, as in info,{text}"
        ));
    }
    EnvFilter::try_new(text).map(drop).map_err(|error| format!("is `{text}` ({error})"))
}

fn is_target(word: &str) -> bool {
    word == CRATE || word.contains("::")
}

fn is_level(word: &str, directive: &str) -> Result<(), String> {
    let lower = word.to_ascii_lowercase();
    if LEVELS.contains(&lower.as_str()) {
        return Ok(());
    }
    // Words that other programs use for levels.
    let meant = match lower.as_str() {
        "warning" => Some("warn"),
        "err" | "critical" | "fatal" | "alert" | "emerg" => Some("error"),
        "notice" | "information" | "informational" => Some("info"),
        "verbose" | "all" => Some("trace"),
        "none" | "silent" | "quiet" => Some("off"),
        other => nearest(other, LEVELS.into_iter()),
    };
    let meant = meant.map_or_else(String::new, |level| format!("; did you mean `{level}`?"));
    let place = if word == directive { String::new() } else { format!(" in `{directive}`") };
    Err(format!(
        "has `{word}`{place}, which is no level: write one of {}, and for a part of the daemon \
         more, as in info,piped::peer=debug{meant}",
        LEVELS.join(", ")
    ))
}

fn is_part(target: &str) -> Result<(), String> {
    let mut words = target.split("::");
    let (first, part) = (words.next().unwrap_or_default(), words.next());
    let known = first == CRATE && part.is_none_or(|part| LOG_PARTS.contains(&part));
    if known {
        return Ok(());
    }
    let meant = nearest(part.unwrap_or(first), LOG_PARTS.into_iter());
    let meant = meant.map_or_else(
        || format!("there are {CRATE}::{{{}}}", LOG_PARTS.join(",")),
        |part| format!("did you mean `{CRATE}::{part}`?"),
    );
    Err(format!("names `{target}`, of which nothing is logged; {meant}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_parts_of_the_daemon_are_taken() {
        for text in [
            "info",
            "WARN",
            "off",
            "info,piped::peer=debug",
            "piped::peer=debug, warn",
            "error,piped=info",
            "info,piped::io::probe=trace",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_would_silence_the_log_is_refused_with_what_to_write() {
        for (text, hint) in [
            ("warning", "did you mean `warn`?"),
            ("inof", "did you mean `info`?"),
            ("verbose", "did you mean `trace`?"),
            ("chatty", "off, error, warn, info, debug, trace"),
            ("3", "which is no level"),
            ("", "is empty"),
            (" ", "is empty"),
            ("info,", "beside a comma"),
            ("info,piped=loud", "`loud` in `piped=loud`"),
            ("info,piped=", "which is no level"),
            ("info,piped::pear=debug", "did you mean `piped::peer`?"),
            ("info,peer=debug", "did you mean `piped::peer`?"),
            ("info,tokio=debug", "nothing is logged"),
            ("piped::peer", "write piped::peer=debug"),
            ("piped::peer=debug", "begin with a level for them, as in info,piped::peer=debug"),
            ("info,[span]=debug", "has no spans"),
            ("info,piped[a{b=1}]=debug", "has no spans"),
            ("info,debug", "write one"),
        ] {
            let refused = check(text).expect_err(text);
            assert!(refused.contains(hint), "{text}: {refused}");
        }
    }
}
