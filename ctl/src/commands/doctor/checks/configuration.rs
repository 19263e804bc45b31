//! Checks of the configuration, and of the daemon against it.

use crate::commands::doctor::facts::Facts;
use crate::commands::doctor::finding::Finding;

/// Judges the configuration files.
pub(super) fn files(facts: &Facts) -> Vec<Finding> {
    if !facts.mistakes.is_empty() {
        let mistake = |text: &String| {
            Finding::error("configuration", text.clone())
                .why("a daemon with it does not start, and a reload is refused")
                .fix("pipectl config check")
        };
        return facts.mistakes.iter().map(mistake).collect();
    }
    if !facts.unfit.is_empty() {
        let unfit = |(key, text): &(String, String)| {
            Finding::error(key.clone(), text.clone())
                .why("a daemon with it does not start, and a reload is refused")
                .fix("pipectl config check")
        };
        return facts.unfit.iter().map(unfit).collect();
    }
    let files: Vec<String> = facts.files.iter().map(|file| file.display().to_string()).collect();
    let files =
        if files.is_empty() { "the defaults, no file".to_owned() } else { files.join(", ") };
    vec![Finding::ok("configuration", files)]
}

/// Judges the daemon's configuration against its files.
pub(super) fn daemon(facts: &Facts) -> Vec<Finding> {
    let subject = "daemon";
    let Some(status) = &facts.daemon else {
        let why = facts.unreachable.clone().unwrap_or_else(|| "was not asked".to_owned());
        return vec![
            Finding::unknown(subject, format!("no answer: {why}"))
                .why(
                    "what only it knows is not looked at: the tier in use, lanes, what is degraded",
                )
                .fix("systemctl start piped"),
        ];
    };
    let own = env!("CARGO_PKG_VERSION");
    let mut findings = vec![if status.version == own {
        Finding::ok(
            subject,
            format!("{}: piped {}, pid {}", status.node, status.version, status.pid),
        )
    } else {
        Finding::warning(subject, format!("runs piped {}, this is pipectl {own}", status.version))
            .why("after an upgrade the old daemon goes on until it is restarted")
            .fix("systemctl restart piped")
    }];
    let Some(state) = facts.state() else { return findings };
    if let Some(refused) = &state.refused_reload {
        findings.push(
            Finding::error(subject, format!("the last reload was refused: {}", refused.error))
                .why("it runs with the configuration before that")
                .fix("pipectl config check")
                .fix("pipectl config reload"),
        );
    }
    if !state.restart_needed.is_empty() {
        let keys: Vec<&str> = state.restart_needed.iter().map(|it| it.key.as_str()).collect();
        findings.push(
            Finding::warning(subject, format!("changed, but not in force: {}", keys.join(", ")))
                .why("these keys take effect at a start")
                .fix("systemctl restart piped"),
        );
    }
    findings
}

/// Judges users and groups that the configuration names.
pub(super) fn principals(facts: &Facts) -> Vec<Finding> {
    let unknown = facts.principals.iter().filter(|it| !it.is_known);
    let mut findings: Vec<Finding> = unknown
        .map(|it| {
            let (kind, file, add) = match it.is_group {
                true => ("group", "/etc/group", "groupadd"),
                false => ("user", "/etc/passwd", "useradd"),
            };
            Finding::error(
                "access",
                format!("{}: there is no {kind} `{}` in {file}", it.key, it.name),
            )
            .why("the daemon does not start; a reload is refused")
            .fix(format!("{add} {}   # or write its number, or correct the name", it.name))
        })
        .collect();
    if findings.is_empty() {
        let config = facts.config.as_ref();
        let is_private =
            config.is_some_and(|it| it.access.users.is_empty() && it.access.groups.is_empty());
        let what = match is_private {
            true => "clients: the daemon's own user and root ([access] is empty)".to_owned(),
            false => format!("all {} names are known", facts.principals.len()),
        };
        findings.extend(config.map(|_| Finding::ok("access", what)));
    }
    findings
}

/// Judges the sockets of clients and operators.
pub(super) fn sockets(facts: &Facts) -> Vec<Finding> {
    let runs = facts.daemon.is_some();
    let look = |it: &crate::commands::doctor::facts::SocketFacts| {
        let path = it.path.display();
        let (subject, fix) = (it.key.clone(), "systemctl restart piped");
        match (it.there, runs) {
            (None, _) if !it.has_directory => {
                let folder = it.path.parent().unwrap_or(&it.path).display().to_string();
                Finding::warning(subject, format!("{folder} is not there"))
                    .why(
                        "the daemon cannot make its socket there; its unit makes /run/piped at \
                         each start",
                    )
                    .fix(format!("install -d -o piped -g piped -m 0755 {folder}"))
            }
            (None, false) => Finding::ok(subject, format!("{path} is free")),
            (None, true) => {
                Finding::error(subject, format!("{path} is not there, although the daemon runs"))
                    .why("somebody removed it: nobody can connect any more")
                    .fix(fix)
            }
            (Some((false, _)), _) => {
                Finding::error(subject, format!("{path} is something else than a socket"))
                    .why("the daemon does not start: it removes nothing that is not its own")
                    .fix(format!("mv {path} {path}.old"))
            }
            // The kernel asks for write permission; the daemon checks the user itself.
            (Some((true, mode)), _) => match &it.connects {
                None => Finding::ok(subject, format!("{path} answers (mode {mode:04o})")),
                Some(error) if !runs => {
                    Finding::warning(subject, format!("{path} is there, nobody answers ({error})"))
                        .why("left behind by a daemon that was killed; the next one replaces it")
                        .fix("systemctl start piped")
                }
                Some(error) => {
                    Finding::warning(subject, format!("{path} does not let this user in ({error})"))
                        .why("for others it may work")
                        .fix("sudo pipectl doctor")
                }
            },
        }
    };
    facts.sockets.iter().map(look).collect()
}

/// Warns of settings that should be on purpose.
pub(super) fn warnings(facts: &Facts) -> Vec<Finding> {
    let Some(config) = &facts.config else { return Vec::new() };
    let mut findings = Vec::new();
    if !config.listen.allow_plain.is_empty() {
        let networks: Vec<String> =
            config.listen.allow_plain.iter().map(ToString::to_string).collect();
        findings.push(
            Finding::warning("listen.allow_plain", networks.join(", "))
                .why("everybody in these networks can read what is sent, and pose as a peer")
                .fix(facts.then_reload("take networks out that are not yours alone")),
        );
    }
    if let Some(address) = config.metrics.address.filter(|address| !address.ip().is_loopback()) {
        findings.push(
            Finding::warning("metrics.address", format!("{address} is not loopback"))
                .why(
                    "everybody that reaches it can read how much is moved, and the names of peers \
                     and devices",
                )
                .fix(
                    "a firewall for the port, or metrics.address = \"127.0.0.1:9741\" behind a \
                     proxy",
                ),
        );
    }
    for (name, next) in config.peers.iter().filter_map(|(name, it)| Some((name, it.next_key?))) {
        let finding = Finding::warning(format!("peers.{name}.next_key"), "is set")
            .why("the node's older key is good as well until its change is finished")
            .fix(format!("pipectl keys trust {name} {next}   # once that node has it"));
        findings.push(facts.reloaded(finding));
    }
    if config.planner.allow_dials {
        findings.push(
            Finding::warning("planner.allow_dials", "is on")
                .why("stages can be made slower on purpose")
                .fix(facts.then_reload("planner.allow_dials = false")),
        );
    }
    findings
}
