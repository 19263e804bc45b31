//! Checks of the kernel: io_uring, its features, and the clock.

use crate::commands::doctor::facts::{Facts, Ring};
use crate::commands::doctor::finding::Finding;

const EPERM: i32 = 1;
const ENOMEM: i32 = 12;
const ENOSYS: i32 = 38;

/// System calls that a filter has to let through.
const CALLS: &str = "io_uring_setup io_uring_enter io_uring_register";

/// Profile that lets them through, as the package installs it.
const PROFILE: &str = "/usr/share/piped/container/seccomp.json";

/// Judges io_uring, by the attempt to set one up.
pub(super) fn ring(facts: &Facts) -> Vec<Finding> {
    let subject = "io_uring";
    let kernel = &facts.machine.kernel;
    let disabled = facts.sysctl("kernel/io_uring_disabled").unwrap_or("0");
    let found = match &facts.ring {
        Ring::Untried => Finding::unknown(subject, "was not tried"),
        Ring::Made(_) if disabled == "1" => by_group(facts),
        Ring::Made(_) => Finding::ok(subject, format!("can be used (kernel {kernel})")),
        Ring::Refused(_) if disabled == "2" => {
            Finding::error(subject, "is switched off: kernel.io_uring_disabled is 2")
                .why("piped does all its work by io_uring; it does not start without")
                .fix("sysctl -w kernel.io_uring_disabled=0")
                .fix("echo kernel.io_uring_disabled=0 > /etc/sysctl.d/60-piped.conf")
        }
        Ring::Refused(_) if disabled == "1" => by_group(facts),
        Ring::Refused(EPERM) => filtered(facts, "EPERM"),
        Ring::Refused(ENOSYS) if facts.process.filtered || facts.machine.container.is_some() => {
            filtered(facts, "ENOSYS")
        }
        Ring::Refused(ENOSYS) => {
            Finding::error(subject, format!("kernel {kernel} was built without it (ENOSYS)"))
                .why("piped does all its work by io_uring; it does not start without")
                .fix("boot a kernel with CONFIG_IO_URING=y, version 5.15 or later")
        }
        Ring::Refused(ENOMEM) => {
            Finding::error(subject, "there is no locked memory left for a ring (ENOMEM)")
                .why("a ring counts as locked memory of the user")
                .fix("systemctl edit piped   # [Service] LimitMEMLOCK=infinity")
        }
        Ring::Refused(errno) => {
            Finding::error(subject, format!("the kernel refuses a ring (error {errno})"))
                .why("piped does all its work by io_uring; it does not start without")
                .fix("dmesg | tail   # what the kernel says of it")
        }
    };
    vec![found]
}

/// Finding for io_uring_disabled = 1, which admits one group only.
fn by_group(facts: &Facts) -> Finding {
    let subject = "io_uring";
    let group: Option<u32> =
        facts.sysctl("kernel/io_uring_group").and_then(|text| text.parse().ok());
    let Some(user) = &facts.process.user else {
        return Finding::unknown(
            subject,
            "is for one group only (kernel.io_uring_disabled is 1), and the daemon's user cannot \
             be seen",
        );
    };
    if user.uid == 0 || group.is_some_and(|group| user.groups.contains(&group)) {
        return Finding::ok(subject, format!("is for one group, and {} is in it", user.name));
    }
    Finding::error(
        subject,
        format!(
            "is for group {} only (kernel.io_uring_disabled is 1), and {} is not in it",
            group.map_or_else(|| "-1".to_owned(), |group| group.to_string()),
            user.name
        ),
    )
    .why("piped does all its work by io_uring; it does not start without")
    .fix(format!("sysctl -w kernel.io_uring_group=$(id -g {})", user.name))
    .fix("or: sysctl -w kernel.io_uring_disabled=0")
}

/// Finding for a filter: containers' profiles for system calls know io_uring_setup as dangerous.
fn filtered(facts: &Facts, error: &str) -> Finding {
    let place = facts.machine.container.as_deref().unwrap_or("this place");
    let finding = Finding::error(
        "io_uring",
        format!("a filter for system calls forbids it in {place} ({error})"),
    )
    .why(
        "piped does all its work by io_uring; the default profiles of container engines refuse it",
    );
    match facts.machine.container.as_deref() {
        Some(engine @ ("docker" | "podman")) => {
            finding.fix(format!("{engine} run --security-opt seccomp={PROFILE} ..."))
        }
        Some("systemd-nspawn") => {
            finding.fix(format!("systemd-nspawn --system-call-filter=\"{CALLS}\" ..."))
        }
        Some(_) => finding.fix(format!(
            "start the container with the profile {PROFILE}, or one of yours that allows {CALLS}"
        )),
        None => finding.fix(format!("systemctl edit piped   # [Service] SystemCallFilter={CALLS}")),
    }
}

/// Judges the features that the daemon uses, or could.
pub(super) fn features(facts: &Facts) -> Vec<Finding> {
    if let Some(status) = &facts.daemon {
        // The daemon's own text has cause and fix.
        let degraded = status.degraded.iter().map(|line| {
            Finding::warning("daemon", line.clone()).why("it works, with less than there could be")
        });
        let tier = if status.tier.is_empty() {
            "plain io_uring".to_owned()
        } else {
            status.tier.join(", ")
        };
        let landlock = &status.sandbox;
        // The absence is among the degraded features.
        let sandbox = (landlock.landlock_abi > 0).then(|| {
            let what = landlock.landlock.join(", ");
            Finding::ok("sandbox", format!("Landlock {}: {what}", landlock.landlock_abi))
        });
        return std::iter::once(Finding::ok("tier", tier)).chain(sandbox).chain(degraded).collect();
    }
    let Ring::Made(features) = &facts.ring else { return Vec::new() };
    let names = |wanted: bool| {
        let of = features.iter().filter(|(_, there)| *there == wanted);
        of.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let missing = names(false);
    if missing.is_empty() {
        return vec![Finding::ok("tier", names(true))];
    }
    vec![
        Finding::warning("tier", format!("kernel {} has no {missing}", facts.machine.kernel))
            .why("piped goes without, at the cost of system calls and copies")
            .fix("a kernel of version 6.6 or later has all of them"),
    ]
}

/// Judges the clock: reading it is a system call where programs cannot read the hardware's counter.
pub(super) fn clock(facts: &Facts) -> Vec<Finding> {
    const FAST: [&str; 5] =
        ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase"];
    let Some(clock) = &facts.machine.clock else {
        return vec![Finding::unknown("clock", "the clock source cannot be read")];
    };
    if FAST.contains(&clock.as_str()) {
        return vec![Finding::ok("clock", format!("CLOCK_MONOTONIC comes from {clock}"))];
    }
    let better = FAST.iter().find(|name| facts.machine.clocks.iter().any(|it| it == *name));
    let finding = Finding::warning("clock", format!("CLOCK_MONOTONIC comes from {clock}")).why(
        "each look at it is a system call of a microsecond or more, and every fragment is timed \
         twice: costs are measured too high",
    );
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    vec![match better {
        Some(name) => finding.fix(format!("echo {name} > {source}")),
        None => finding.fix("dmesg | grep -i clocksource   # why the kernel gave up tsc"),
    }]
}
