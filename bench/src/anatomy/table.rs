//! The steps of a request, by the modules of the source that do them.
//!
//! This is the one place that says so. Each file belongs to the step with the longest prefix of its
//! path. A renamed module breaks a test here, and docs/performance.md has this table, too.

/// A step of a request.
#[derive(Debug)]
pub(super) struct Step {
    /// Name of the step in reports.
    pub(crate) name: &'static str,
    /// Paths from the root of the tree, of files and directories.
    pub(crate) modules: &'static [&'static str],
}

/// Place of what only measures among [`STEPS`].
pub(super) const MEASURING: usize = 0;

/// Place of the step among [`STEPS`] that serves all others: slabs, times, bounds. Where its code
/// was put into that of another step, it counts for that one.
pub(super) const SHARED: usize = STEPS.len() - 1;

/// All steps: those of clients, those of daemons, and those of both.
pub(super) const STEPS: [Step; 29] = [
    Step {
        name: "measuring loop",
        modules: &["bench/src", "crates/ring/src/allocations.rs", "tests/src"],
    },
    Step {
        name: "client: request and buffer",
        modules: &["client-lib/src", "client-lib/src/queue.rs", "client-lib/src/table.rs"],
    },
    Step {
        name: "client: wait and completion",
        modules: &[
            "client-lib/src/clock.rs",
            "client-lib/src/core.rs",
            "client-lib/src/core",
            "client-lib/src/table/results.rs",
        ],
    },
    Step { name: "rings in shared memory", modules: &["crates/ring/src"] },
    Step {
        name: "segments: payload in place",
        modules: &[
            "crates/ring/src/mapping.rs",
            "crates/ring/src/segment.rs",
            "crates/ring/src/view.rs",
            "daemon/src/io/memory.rs",
        ],
    },
    Step {
        name: "doorbells: sleep and wake",
        modules: &["crates/ring/src/doorbell.rs", "crates/ring/src/nap.rs"],
    },
    Step { name: "spinning: how long", modules: &["crates/ring/src/spinner.rs"] },
    Step { name: "reactor: turns", modules: &["daemon/src/shard", "daemon/src/watchdog.rs"] },
    Step { name: "driver: io_uring", modules: &["daemon/src/io"] },
    Step { name: "driver: receives tried", modules: &["daemon/src/io/receives.rs"] },
    Step { name: "driver: clock", modules: &["daemon/src/io/clock.rs"] },
    Step {
        name: "door of clients",
        modules: &["daemon/src/client", "daemon/src/shard/sessions.rs"],
    },
    Step {
        name: "admission, handle, order",
        modules: &[
            "crates/engine/src/shard/account.rs",
            "crates/engine/src/shard/clients",
            "crates/engine/src/shard/flows/permit",
            "crates/engine/src/shard/flows/request/resolve.rs",
            "crates/engine/src/shard/flows/request/session.rs",
            "crates/engine/src/shard/flows/request/submit.rs",
            "crates/engine/src/shard/rate.rs",
        ],
    },
    Step {
        name: "transfer: start to end",
        modules: &["crates/engine/src/shard/flows/request", "crates/engine/src/shard/requests"],
    },
    Step {
        name: "asked of a peer, answered",
        modules: &[
            "crates/engine/src/shard/flows/connection/peering.rs",
            "crates/engine/src/shard/flows/request/once.rs",
            "crates/engine/src/shard/flows/request/outbound.rs",
            "crates/engine/src/shard/flows/request/remote.rs",
            "crates/engine/src/shard/peers",
            "crates/engine/src/shard/requests/once.rs",
        ],
    },
    Step {
        name: "request of a peer: check",
        modules: &[
            "crates/engine/src/shard/faults.rs",
            "crates/engine/src/shard/flows/connection/crowd.rs",
            "crates/engine/src/shard/flows/connection/greeting.rs",
            "crates/engine/src/shard/flows/permit/ending.rs",
            "crates/engine/src/shard/flows/service/inbound.rs",
            "crates/engine/src/shard/flows/service/served.rs",
            "crates/engine/src/shard/links",
        ],
    },
    Step {
        name: "request of a peer: serve",
        modules: &["crates/engine/src/shard/flows/service", "crates/engine/src/shard/responder"],
    },
    Step {
        name: "plan",
        modules: &[
            "crates/engine/src/shard/flows/plan",
            "crates/model/src",
            "crates/planner/src",
            "daemon/src/shard/solver.rs",
        ],
    },
    Step {
        name: "samples and estimates",
        modules: &[
            "crates/engine/src/shard/connections/reports.rs",
            "crates/engine/src/shard/flows/plan/reports.rs",
            "crates/model/src/estimate",
            "crates/planner/src/guard",
            "crates/planner/src/guard.rs",
            "crates/planner/src/outlook.rs",
            "crates/planner/src/stage.rs",
            "crates/planner/src/told.rs",
        ],
    },
    Step {
        name: "figures, history, trace",
        modules: &[
            "crates/engine/src/shard/delays",
            "crates/engine/src/shard/flows/plan/dial.rs",
            "crates/engine/src/shard/flows/plan/facts.rs",
            "crates/engine/src/shard/flows/plan/observe.rs",
            "crates/engine/src/shard/watch",
            "crates/report/src",
        ],
    },
    Step {
        name: "connection: credit, sends",
        modules: &[
            "crates/engine/src/shard/connections",
            "crates/engine/src/shard/flows/connection",
        ],
    },
    Step { name: "frames: written", modules: &["crates/wire/src"] },
    Step {
        name: "frames: received and parsed",
        modules: &["crates/wire/src/fault.rs", "crates/wire/src/receive.rs"],
    },
    Step {
        name: "frames: seal, checksum",
        modules: &["crates/wire/src/checked.rs", "crates/wire/src/seal.rs"],
    },
    Step { name: "operations and devices", modules: &["crates/engine/src/shard/driver"] },
    Step {
        name: "buffers, landing, pins",
        modules: &[
            "crates/engine/src/shard/arena.rs",
            "crates/engine/src/shard/buffers",
            "crates/engine/src/shard/landed.rs",
            "crates/engine/src/shard/pins.rs",
        ],
    },
    Step {
        name: "messages and notifications",
        modules: &[
            "crates/engine/src/shard/flows/message",
            "crates/engine/src/shard/messages",
            "crates/engine/src/shard/notifications.rs",
            "crates/engine/src/shard/requests/message.rs",
        ],
    },
    Step {
        name: "control thread, the rest",
        modules: &["config/src", "crates/control/src", "daemon/src"],
    },
    Step {
        name: "engine: turns, slabs, times",
        modules: &["crates/core/src", "crates/engine/src", "crates/text/src"],
    },
];

/// Place of the step of a file among [`STEPS`].
pub(super) fn step_of(file: &str) -> Option<usize> {
    let prefixes = STEPS.iter().enumerate();
    let prefixes =
        prefixes.flat_map(|(step, it)| it.modules.iter().map(move |module| (step, *module)));
    let around = prefixes.filter(|(_, module)| {
        file.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    around.max_by_key(|(_, module)| module.len()).map(|(step, _)| step)
}

/// The table for documents.
pub(super) fn markdown() -> String {
    let mut text = String::from("| step | modules |\n| --- | --- |\n");
    for Step { name, modules } in &STEPS {
        text += &format!("| {name} | `{}` |\n", modules.join("`, `"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Crates that are in one of the three processes, beside those that only measure.
    const CRATES: [&str; 12] = [
        "client-lib",
        "config",
        "crates/control",
        "crates/core",
        "crates/engine",
        "crates/model",
        "crates/planner",
        "crates/report",
        "crates/ring",
        "crates/text",
        "crates/wire",
        "daemon",
    ];

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("of the workspace")
    }

    fn files(directory: &str, found: &mut Vec<String>) {
        for entry in fs::read_dir(root().join(directory)).expect(directory) {
            let name = entry.expect("readable").file_name().into_string().expect("text");
            let path = format!("{directory}/{name}");
            if root().join(&path).is_dir() {
                files(&path, found);
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }

    #[test]
    fn the_modules_of_the_steps_are_there() {
        let mut seen = BTreeSet::new();
        for Step { name, modules } in &STEPS {
            assert!(seen.insert(*name), "{name} is there twice");
            for module in *modules {
                assert!(root().join(module).exists(), "{name}: there is no {module}");
                assert!(seen.insert(module), "{module} is there twice");
            }
        }
    }

    #[test]
    fn every_module_of_the_processes_has_a_step() {
        for name in CRATES {
            let mut found = Vec::new();
            files(&format!("{name}/src"), &mut found);
            assert!(!found.is_empty(), "{name}");
            for file in found {
                assert!(step_of(&file).is_some(), "{file} is in no step");
            }
        }
    }

    #[test]
    fn the_longest_prefix_counts() {
        let name = |file: &str| step_of(file).map(|step| STEPS[step].name);
        assert_eq!(name("daemon/src/io/ring.rs"), Some("driver: io_uring"));
        assert_eq!(name("daemon/src/io/receives.rs"), Some("driver: receives tried"));
        assert_eq!(name("daemon/src/main.rs"), Some("control thread, the rest"));
        assert_eq!(name("crates/engine/src/shard/slab.rs"), Some(STEPS[SHARED].name));
        assert_eq!(name("crates/engine/src/shard/lanes.rs"), Some(STEPS[SHARED].name));
        assert_eq!(name("registry/src/lib.rs"), None);
    }
}
