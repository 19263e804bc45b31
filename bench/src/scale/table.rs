//! What scenes showed, as tables for people and for docs/benchmarks.md.

use piped_cli::table;
use piped_cli::table::Column::{Number, Text};
use piped_core::units::Nanos;
use system_tests::scale::{Figures, Machine, Options, Peers, Scene};

/// Most bytes that an idle peer may cost a node: the engine, the control component, and staging.
pub(super) const PEER_BYTES_MAX: f64 = 65_536.0;

const KIB: f64 = 1024.0;

const SCENES: [&str; 12] = [
    "scene",
    "nodes",
    "each asks",
    "requests",
    "failed",
    "MB",
    "time",
    "at best",
    "over it",
    "Jain",
    "slowest",
    "verdict",
];

const IDLES: [&str; 10] = [
    "peers",
    "nodes",
    "lanes",
    "all are up",
    "heap: engine",
    "control",
    "staging",
    "an idle peer",
    "of it heap",
    "verdict",
];

/// A scene that was played, or why it was not.
#[derive(Debug, Clone)]
pub(super) struct Played {
    pub(crate) scene: Scene,
    pub(crate) options: Options,
    pub(crate) found: Result<Figures, String>,
}

/// What a world that rests costs, or why there was none.
#[derive(Debug, Clone)]
pub(super) struct Idle {
    pub(crate) options: Options,
    pub(crate) peers: Peers,
    pub(crate) found: Result<Figures, String>,
    /// Bytes of the heap that engine and control of a node have without any peer.
    alone: [f64; 2],
}

/// All that was played.
#[derive(Debug, Clone)]
pub(super) struct Study {
    options: Options,
    pub(crate) idles: Vec<Idle>,
    pub(crate) played: Vec<Played>,
}

impl Idle {
    /// `alone`: figures of nodes that ask nobody.
    pub(super) fn new(
        (options, peers): (Options, Peers),
        found: Result<Figures, String>,
        alone: &Figures,
    ) -> Self {
        Self { options, peers, found, alone: heaps(alone) }
    }

    /// Bytes of the heap for each peer, and of staging.
    pub(super) fn of_a_peer(&self) -> Option<[f64; 2]> {
        let figures = self.found.as_ref().ok()?;
        let peers = figures.asked as f64;
        let heap: f64 = heaps(figures).iter().zip(self.alone).map(|(all, alone)| all - alone).sum();
        Some([heap / peers, figures.costs.staging as f64 / peers])
    }

    fn holds(&self) -> bool {
        self.of_a_peer().is_some_and(|[heap, staging]| heap + staging <= PEER_BYTES_MAX)
    }

    fn cells(&self) -> Vec<String> {
        let first = vec![self.peers.name().to_owned(), self.options.nodes.to_string()];
        let (Ok(figures), Some([heap, staging])) = (&self.found, self.of_a_peer()) else {
            let why = self.found.as_ref().err().cloned().unwrap_or_default();
            return refused(first, IDLES.len(), &why);
        };
        let kib = |bytes: f64| format!("{:.0} KiB", bytes / KIB);
        let [engine, control] = heaps(figures);
        let rest = [
            figures.costs.lanes.to_string(),
            time(figures.up),
            kib(engine),
            kib(control),
            kib(figures.costs.staging as f64),
            kib(heap + staging),
            kib(heap),
            verdict(self.holds()),
        ];
        first.into_iter().chain(rest).collect()
    }
}

/// Bytes of the heap of a node: its engine, and its control component.
fn heaps(figures: &Figures) -> [f64; 2] {
    let nodes = figures.nodes as f64;
    [figures.costs.engine as f64 / nodes, figures.costs.control as f64 / nodes]
}

impl Played {
    pub(super) fn new(scene: Scene, options: Options, found: Result<Figures, String>) -> Self {
        Self { scene, options, found }
    }

    /// Whether all requests ended well.
    fn holds(&self) -> bool {
        self.found.as_ref().is_ok_and(|figures| figures.requests[1] == 0)
    }

    fn cells(&self) -> Vec<String> {
        let first = vec![self.scene.name().to_owned(), self.options.nodes.to_string()];
        let figures = match &self.found {
            Ok(figures) => figures,
            Err(why) => return refused(first, SCENES.len(), why),
        };
        let [ended, failed] = figures.requests;
        let rest = [
            figures.asked.to_string(),
            (ended + failed).to_string(),
            failed.to_string(),
            format!("{:.0}", figures.bytes as f64 * 1e-6),
            time(figures.took),
            time(figures.best),
            format!("{:.2} x", figures.over_best()),
            format!("{:.3}", figures.jain()),
            format!("{:.2} x", figures.slowest()),
            verdict(self.holds()),
        ];
        first.into_iter().chain(rest).collect()
    }
}

impl Study {
    pub(super) fn new(options: Options) -> Self {
        Self { options, idles: Vec::new(), played: Vec::new() }
    }

    pub(super) fn add_idle(&mut self, idle: Idle) {
        self.idles.push(idle);
    }

    pub(super) fn add(&mut self, played: Played) {
        self.played.push(played);
    }

    /// Whether all bars hold.
    pub(super) fn all_hold(&self) -> bool {
        self.idles.iter().all(Idle::holds) && self.played.iter().all(Played::holds)
    }

    /// Scenes of which the nodes work lists off, or whose load goes on, with their figures.
    pub(super) fn shown(&self, is_disturbed: bool) -> Vec<(Scene, &Figures)> {
        let of = self.played.iter().filter(|it| it.scene.is_disturbed() == is_disturbed);
        let same_size = of.filter(|it| it.options.nodes == self.options.nodes);
        same_size.filter_map(|it| Some((it.scene, it.found.as_ref().ok()?))).collect()
    }

    fn machine(&self) -> String {
        let Options { block, seed, machine, .. } = self.options;
        let Machine { link, disk, window, socket_buffer, staging, step_max, mailbox_max } = machine;
        let micros = |time: Nanos| time.0 / 1000;
        format!(
            "Simulated nodes with keys and one shard each, seed {seed}. Link: {:.1} Gbit/s, L {} \
             us, g {} us.\nDisk: {:.1} GB/s, L {} us, g {} us, {window} at once. Socket buffers: \
             {} KiB. Staging: {} MiB.\nLooking a host up, connecting and each message of a \
             handshake take up to {} us, a command\nof the control thread up to {} us. Blocks have \
             {} KiB.\n",
            8.0 / link.nanos_per_byte,
            micros(link.latency),
            micros(link.overhead),
            1.0 / disk.nanos_per_byte,
            micros(disk.latency),
            micros(disk.overhead),
            socket_buffer >> 10,
            staging >> 20,
            micros(step_max),
            micros(mailbox_max),
            block >> 10,
        )
    }

    /// Text for people, with both tables.
    pub(super) fn text(&self) -> String {
        let mut text = self.machine();
        if !self.played.is_empty() {
            let columns = columns(SCENES);
            let rows = self.played.iter().map(Played::cells).collect();
            text += &format!("\n{}\n", table::render(&columns, rows, None));
        }
        if !self.idles.is_empty() {
            let rows = self.idles.iter().map(Idle::cells).collect();
            text += &format!("\n{}\n", table::render(&columns(IDLES), rows, None));
        }
        text
    }

    /// Tables for docs/benchmarks.md, below the simulated machine.
    pub(super) fn markdown(&self) -> String {
        let mut text = self.machine() + "\n";
        text += &head(&SCENES);
        text.extend(self.played.iter().map(|it| line(&it.cells())));
        text += "\n";
        text += &head(&IDLES);
        text.extend(self.idles.iter().map(|it| line(&it.cells())));
        text + "\n![Times of nodes, loads through disturbances, and what a peer costs]\
                (figures/scale.svg)\n"
    }
}

/// The columns of a table: text is in the first, and numbers are in the others.
fn columns<const N: usize>(names: [&'static str; N]) -> [table::Column; N] {
    names.map(|name| if name == names[0] { Text(name) } else { Number(name) })
}

/// The head of such a table.
pub(super) fn head(names: &[&str]) -> String {
    let kind = |column: usize| if column == 0 { "---" } else { "---:" };
    let kinds: Vec<&str> = (0..names.len()).map(kind).collect();
    format!("| {} |\n| {} |\n", names.join(" | "), kinds.join(" | "))
}

/// A row of such a table.
pub(super) fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// Cells of a row without figures: the reason stands in its last one.
fn refused(mut cells: Vec<String>, columns: usize, why: &str) -> Vec<String> {
    cells.resize(columns - 1, String::new());
    cells.push(format!("FAILS: {why}"));
    cells
}

fn verdict(holds: bool) -> String {
    if holds { "holds" } else { "FAILS" }.to_owned()
}

fn time(time: Nanos) -> String {
    let seconds = time.seconds();
    if seconds < 1.0 { format!("{:.2} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

#[cfg(test)]
pub(super) mod tests {
    use system_tests::scale::Costs;

    use super::*;

    pub(in super::super) fn study() -> Study {
        let options = Options::all(5, 1);
        let mut study = Study::new(options);
        let costs = Costs { engine: 5 * 4096, control: 5 * 1024, lanes: 16, staging: 0 };
        let alone = Figures { nodes: 1, ..Figures::default() };
        let figures = |staging| Figures {
            nodes: 5,
            asked: 4,
            took: Nanos::from_millis(3),
            best: Nanos::from_millis(2),
            requests: [7, u64::from(staging > 0)],
            rates: vec![1.0, 2.0],
            series: vec![3, 4],
            costs: Costs { staging, ..costs },
            ..Figures::default()
        };
        let up = (options, Peers::Connected);
        study.add_idle(Idle::new(up, Ok(figures(0)), &alone));
        study.add_idle(Idle::new(up, Ok(figures(1 << 20)), &alone));
        study.add(Played::new(Scene::AllToAll, options, Ok(figures(0))));
        study.add(Played::new(Scene::Partition, options, Ok(figures(1))));
        study.add(Played::new(Scene::Incast, options, Err("`peers` are 199".to_owned())));
        study
    }

    #[test]
    fn a_row_says_whether_its_bar_holds_and_why_there_are_no_figures() {
        let text = study().markdown();
        let row = |begin: &str| {
            let found = text.lines().find(|line| line.starts_with(begin));
            found.unwrap_or_else(|| panic!("{begin}: {text}")).to_owned()
        };
        let all = row("| all-to-all | 5 | 4 | 7 | 0 |");
        assert!(all.ends_with("| 1.50 x | 0.900 | 0.67 x | holds |"), "{all}");
        assert!(row("| partition | 5 | 4 | 8 | 1 |").ends_with("| FAILS |"));
        assert!(row("| incast | 5 |").ends_with("| FAILS: `peers` are 199 |"));
        assert!(!study().all_hold());
        let columns: Vec<usize> = text
            .lines()
            .filter(|line| line.starts_with('|'))
            .map(|line| line.matches('|').count())
            .collect();
        assert_eq!(columns, [[SCENES.len() + 1; 5].as_slice(), &[IDLES.len() + 1; 4]].concat());
    }

    #[test]
    fn an_idle_peer_costs_what_a_node_has_beyond_what_it_has_alone() {
        let study = study();
        assert_eq!(study.idles[0].of_a_peer(), Some([1280.0, 0.0]));
        assert_eq!(study.idles[1].of_a_peer(), Some([1280.0, 262_144.0]));
        assert!(study.idles[0].holds() && !study.idles[1].holds());
    }
}
