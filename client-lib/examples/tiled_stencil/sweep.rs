//! All processes of the grid, started from here, step by step; and what they took.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use piped_client::{Schedule, TileHeight, Tiling};

use crate::arguments::Arguments;

/// Starts the processes, has them run every step, and prints a table.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let processes = (0..arguments.processes()).map(Process::start).collect::<Result<Vec<_>, _>>();
    let mut all = Grid(processes?);
    println!(
        "{:<16} {:>8} {:>8} {:>10} {:>10} {:>6} {:>12} {:>12} {:>7}",
        "SCHEDULE",
        "HEIGHT",
        "TILES",
        "TIME (ms)",
        "MODEL (ms)",
        "RATIO",
        "COMPUTE (ms)",
        "ALONE (ms)",
        "ADDED"
    );
    let mut model: Option<(Schedule, Tiling)> = None;
    for step in arguments.steps() {
        let runs = all.turn()?;
        let alone = all.turn()?;
        let said = all.turn()?.remove(0);
        if let Some(tiling) = tiling(arguments, &said) {
            let best = tiling.best_whole_height(step.schedule);
            println!("# {}: the model's best height is {}", step.schedule.name(), best.height);
            model = Some((step.schedule, tiling));
        }
        // Over for the grid when it is over for the last one; computation of the first.
        let seconds = runs.iter().filter_map(|run| run.get(2)).copied().fold(0.0, f64::max);
        let [tiles, height, _, compute, _] = runs[0][..] else { return Err("no report".into()) };
        let alone = alone[0][0];
        let of_step = |(schedule, tiling): &(Schedule, Tiling)| {
            let fixed = matches!(step.height, TileHeight::Fixed(_)) || arguments.heights.len() == 1;
            (*schedule == step.schedule && fixed)
                .then(|| tiling.at_whole_height(step.schedule, height as u64).seconds)
        };
        let (predicted, ratio) = match model.as_ref().and_then(of_step) {
            Some(model) => (format!("{:.3}", 1e3 * model), format!("{:.2}", seconds / model)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        println!(
            "{:<16} {:>8} {:>8} {:>10.3} {:>10} {:>6} {:>12.3} {:>12.3} {:>6.1}%",
            step.schedule.name(),
            if step.height == TileHeight::Auto { "auto".to_owned() } else { height.to_string() },
            tiles,
            1e3 * seconds,
            predicted,
            ratio,
            1e3 * compute,
            1e3 * alone,
            1e2 * (compute / alone - 1.0)
        );
    }
    all.end()?;
    if arguments.check {
        println!("# every point of every run is that of the sequential loop, bit for bit");
    }
    Ok(())
}

fn tiling(arguments: &Arguments, said: &[f64]) -> Option<Tiling> {
    let [compute, comm_startup, comm, start_dma, sync] = *said else { return None };
    let depth = arguments.space.depth as f64;
    let grid = arguments.grid;
    Some(Tiling { depth, grid, compute, comm_startup, comm, start_dma, sync })
}

/// A process and what it says.
struct Process {
    child: Child,
    turn: Option<ChildStdin>,
    said: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts this program again, with the same arguments.
    fn start(rank: u32) -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args().skip(1)).args(["--turns", "--rank", &rank.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (turn, said) = (child.stdin.take(), child.stdout.take());
        let said = BufReader::new(said.ok_or("no pipe")?).lines();
        Ok(Self { child, turn, said })
    }

    fn go(&mut self) -> std::io::Result<()> {
        self.turn.as_mut().map_or(Ok(()), |turn| turn.write_all(b"\n"))
    }

    fn numbers(&mut self) -> Result<Vec<f64>, Box<dyn Error>> {
        let line = self.said.next().ok_or("a process failed; its reason is above")??;
        Ok(line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    }
}

struct Grid(Vec<Process>);

impl Grid {
    /// Has all take a step. What they say of it.
    fn turn(&mut self) -> Result<Vec<Vec<f64>>, Box<dyn Error>> {
        self.0.iter_mut().try_for_each(Process::go)?;
        self.0.iter_mut().map(Process::numbers).collect()
    }

    fn end(mut self) -> Result<(), Box<dyn Error>> {
        for process in &mut self.0 {
            process.turn = None;
            if !process.child.wait()?.success() {
                return Err("a process failed; its reason is above".into());
            }
        }
        Ok(())
    }
}

/// Processes that wait for their turn end when it cannot come any more, and the others when their
/// neighbours do.
impl Drop for Grid {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|process| process.turn = None);
        for process in &mut self.0 {
            let _ = process.child.wait();
        }
    }
}
