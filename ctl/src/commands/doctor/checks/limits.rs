//! Checks of the process's limits: locked memory, files, memory and CPUs.

use piped_config::{Config, MemoryLimit, units};
use piped_core::limits::LANES_MAX;
use piped_core::modes::Profile;

use crate::commands::doctor::facts::Facts;
use crate::commands::doctor::finding::Finding;

/// Memory of a shard's ring at the default `io.entries`.
const RING_BYTES: u64 = 1 << 20;
/// Memory of the daemon beside staging and arenas.
const OWN_BYTES: u64 = 64 << 20;

fn staging(config: &Config) -> u64 {
    config.limits.global.staging.0
}

/// Words for the process that has these limits.
fn owner(facts: &Facts) -> &'static str {
    match facts.process.pid {
        Some(_) => "the daemon's",
        None => "this shell's (a unit has its own)",
    }
}

/// Judges RLIMIT_MEMLOCK against the registered memory.
pub(super) fn memlock(facts: &Facts) -> Vec<Finding> {
    let (subject, process) = ("memlock", &facts.process);
    let Some(config) = &facts.config else { return Vec::new() };
    if !process.readable {
        return vec![closed(subject)];
    }
    if process.may_lock {
        return vec![Finding::ok(
            subject,
            format!("{} has CAP_IPC_LOCK: not counted", user(facts)),
        )];
    }
    let Some(limit) = process.memlock_bytes else {
        return vec![Finding::ok(subject, format!("{} is unlimited", owner(facts)))];
    };
    let least = staging(config) + RING_BYTES * u64::from(config.shard_count(facts.machine.cpus));
    let arena = config.client.arena_bytes_max.0;
    let (limit_words, least_words) = (units::bytes(limit), units::bytes(least));
    let fix = |finding: Finding| {
        finding
            .fix("systemctl edit piped   # [Service] LimitMEMLOCK=infinity")
            .fix("systemctl restart piped")
    };
    if limit < least {
        let what =
            format!("{} is {limit_words}; staging and rings take {least_words}", owner(facts));
        let why = "memory beyond the limit is not registered: the kernel pins pages for each \
            operation, or refuses the ring";
        let finding = match process.pid {
            Some(_) => Finding::error(subject, what),
            None => Finding::warning(subject, what),
        };
        return vec![fix(finding.why(why))];
    }
    if limit < least + arena {
        let what = format!(
            "{} is {limit_words}: staging and rings take {least_words}, one client may have {} \
             (client.arena_bytes_max)",
            owner(facts),
            units::bytes(arena)
        );
        let why = "arenas beyond the limit are used unregistered: the kernel pins pages for each \
            operation";
        return vec![fix(Finding::warning(subject, what).why(why))];
    }
    vec![Finding::ok(
        subject,
        format!("{} is {limit_words}, {least_words} are needed at least", owner(facts)),
    )]
}

fn user(facts: &Facts) -> &str {
    facts.process.user.as_ref().map_or("the daemon", |user| user.name.as_str())
}

fn closed(subject: &str) -> Finding {
    Finding::unknown(subject, "the limits of the daemon's process cannot be read by this user")
        .fix("sudo pipectl doctor")
}

/// Judges RLIMIT_NOFILE against handles, queues and lanes.
pub(super) fn files(facts: &Facts) -> Vec<Finding> {
    let (subject, process) = ("open files", &facts.process);
    let Some(config) = &facts.config else { return Vec::new() };
    if !process.readable {
        return vec![closed(subject)];
    }
    let limits = &config.limits;
    let second = config.peers.values().filter(|peer| !peer.second_address.is_empty()).count();
    // Two a handle, three a queue, two lanes to and two from each peer on each shard; one more each
    // where there is a second address. A shard has room for so many.
    let needed = 2 * u64::from(limits.global.handles)
        + 3 * u64::from(limits.global.sessions) * u64::from(config.client.queues_max)
        + ((4 * config.peers.len() + 2 * second) as u64).min(LANES_MAX.into())
            * u64::from(config.shard_count(facts.machine.cpus))
        + 256;
    match process.files {
        Some(limit) if limit < needed => vec![
            Finding::warning(
                subject,
                format!("{} are {limit}; all that limits allow would take {needed}", owner(facts)),
            )
            .why(
                "clients are turned away, and opens fail, before the configured limits are reached",
            )
            .fix(format!(
                "systemctl edit piped   # [Service] LimitNOFILE={}",
                needed.next_power_of_two()
            ))
            .fix("systemctl restart piped"),
        ],
        Some(limit) => vec![Finding::ok(
            subject,
            format!("{} are {limit}, {needed} are needed at most", owner(facts)),
        )],
        None => vec![Finding::ok(subject, format!("{} are unlimited", owner(facts)))],
    }
}

/// Judges memory.max and cpu.max of the control group.
pub(super) fn control_group(facts: &Facts) -> Vec<Finding> {
    let Some(config) = &facts.config else { return Vec::new() };
    let mut findings = Vec::new();
    let arena = config.client.arena_bytes_max.0;
    if let Some(max) = facts.process.memory_max_bytes {
        let least = staging(config) + OWN_BYTES;
        let what = |end: &str| format!("the control group may have {}{end}", units::bytes(max));
        let fix = |finding: Finding, bytes: u64| {
            finding.fix(format!("systemctl set-property piped MemoryMax={}M", (bytes >> 20) + 1))
        };
        findings.push(if max < least {
            let finding = Finding::error(
                "memory",
                what(&format!(", staging and the daemon take {}", units::bytes(least))),
            );
            fix(finding.why("the kernel kills the daemon when staging is used"), least + arena)
        } else if max < least + arena {
            let finding =
                Finding::warning("memory", what(": less than staging and the arena of one client"));
            fix(
                finding.why(
                    "arenas are charged to the daemon, which makes them; it may be killed for a \
                     client's",
                ),
                least + arena,
            )
        } else if let MemoryLimit::UpTo(arenas) = config.limits.global.arena
            && max < least + arenas.0
        {
            let finding =
                Finding::warning("memory", what(": less than staging and limits.global.arena"));
            let finding = finding.why(
                "arenas are charged to the daemon, which makes them; it may be killed for its \
                 clients'",
            );
            fix(finding, least + arenas.0).fix("pipectl limits set global.arena=auto --persist")
        } else {
            Finding::ok("memory", what(""))
        });
    }
    if let Some(total) = facts.machine.memory_bytes
        && staging(config) > total / 2
    {
        findings.push(
            Finding::warning(
                "memory",
                format!(
                    "staging takes {} of {}",
                    units::bytes(staging(config)),
                    units::bytes(total)
                ),
            )
            .why("it is pinned: what is left for everything else cannot be swapped for it")
            .fix("pipectl limits set global.staging=64MiB --persist"),
        );
    }
    if let Some(cpus) = facts.process.cpus_max
        && cpus < f64::from(config.shard_count(facts.machine.cpus))
    {
        findings.push(
            Finding::warning(
                "CPU",
                format!(
                    "the control group may use {cpus:.1} CPUs, there are {} shards",
                    config.shard_count(facts.machine.cpus)
                ),
            )
            .why("a throttled shard stands still for tens of milliseconds, and everybody with it")
            .fix("systemctl set-property piped CPUQuota="),
        );
    }
    findings
}

/// Warns of shards with nine of ten places for files and sockets taken.
pub(super) fn shard_files(facts: &Facts) -> Vec<Finding> {
    let shards = facts.daemon.as_ref().map_or(&[][..], |status| &status.shards);
    let look = |(number, shard): (usize, &serde_json::Value)| {
        let count = |what: &str| shard["reactor"][what].as_u64();
        let (taken, most) = (count("files")?, count("files_limit")?);
        (taken * 10 > most * 9).then(|| {
            Finding::warning(
                "files of shards",
                format!("shard {number} has {taken} of {most} files and sockets"),
            )
            .why("when there are no more, clients and peers open no files, and peers get no lanes")
            .fix("pipectl handles   # which client or peer has them")
            .fix("pipectl limits set user.handles=1024 --persist   # or less for each user")
        })
    };
    shards.iter().enumerate().filter_map(look).collect()
}

/// Judges the number of shards against CPUs.
pub(super) fn cpus(facts: &Facts) -> Vec<Finding> {
    let Some(config) = &facts.config else { return Vec::new() };
    let cpus = facts.machine.cpus;
    let shards = config.shard_count(cpus) as usize;
    if cpus == 0 {
        return Vec::new();
    }
    if shards > cpus {
        return vec![
            Finding::warning("shards", format!("{shards} on {cpus} CPUs"))
                .why("shards that share a CPU wait for each other")
                .fix(format!(
                    "shards.count = {cpus}   # in piped.toml, then: systemctl restart piped"
                )),
        ];
    }
    if config.profile == Profile::Latency && cpus < 2 * shards {
        return vec![
            Finding::warning(
                "shards",
                format!("profile latency with {shards} shards on {cpus} CPUs"),
            )
            .why(
                "shards and waiting clients spin: with fewer CPUs than spinners they take them \
                 from each other",
            )
            .fix("profile = \"balanced\"   # in piped.toml, then: systemctl restart piped"),
        ];
    }
    vec![Finding::ok("shards", format!("{shards} on {cpus} CPUs, profile {}", config.profile))]
}
