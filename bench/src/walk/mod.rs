//! `bench walk`: the way of one get of 4 KiB through client and daemons, function by function.
//!
//! Gets are recorded step by step ([`crate::ab::stepped`]), one process at a time, and a usual one
//! of each is shown. The line tables of the programs tell in which functions each step is, with
//! those that the compiler put into others. Only functions with a body in the source tree are
//! listed, in the order in which they are first entered. So the list can be read like the source:
//! file after file, with so many returns to files already left.

mod shares;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use piped_core::modes::Profile;
use serde::Serialize;

use self::shares::Shares;
use crate::ab::process::PROCESSES;
use crate::ab::stepped::{self, Stepped};
use crate::failure::{Doing as _, Failure};
use crate::lines::{Function, Image, Tree};

/// Lines of a function that is no more than an accessor.
const ACCESSOR_LINES: u32 = 3;

/// Largest share of functions with another name in the source than in the program.
const OTHER_NAMES: f64 = 0.05;

/// Crates of the tree that measure, and are no part of the way.
const MEASURING: [&str; 2] = ["bench/", "tests/"];

/// Records the way of one get of 4 KiB through client and daemons.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Directory with the binaries of a build, with line tables. Default: that of this program.
    #[arg(long, value_name = "DIR")]
    build: Option<PathBuf>,
    /// The source tree of that build.
    #[arg(long, value_name = "DIR", default_value = ".")]
    source: PathBuf,
    /// Profile of the daemons.
    #[arg(long, default_value_t = Profile::Balanced, value_parser = crate::ab::profile)]
    profile: Profile,
    /// How many instructions each function executes, instead of the way.
    #[arg(long)]
    instructions: bool,
    /// One JSON document instead of the list.
    #[arg(long, conflicts_with = "instructions")]
    json: bool,
}

/// Records the way and prints it.
pub(crate) fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { build, source, profile, instructions, json } = arguments;
    crate::hear_interrupts()?;
    let build = crate::beside_this(build)?;
    let data = tempfile::tempdir()?;
    let mut stepped = Stepped::start(stepped::TASK, "only", &build, profile, data.path())?;
    let mut tree = Tree::new(&source);
    let mut names = Names::default();
    let (mut ways, mut shares) = (Vec::new(), String::new());
    for (place, process) in PROCESSES.into_iter().enumerate() {
        eprintln!("bench: {process}");
        let mut gets = stepped.requests(place)?;
        let [idle, steps] = gets.swap_remove(gets.len() / 2).into_addresses();
        let image = Image::of(stepped.processes()[place])?;
        if instructions {
            shares += &Shares::of(&steps, &image, &mut tree)?.text(process);
        }
        let idle = walked(&idle, &image, &mut tree, &mut names)?;
        let way = walked(&steps, &image, &mut tree, &mut names)?;
        ways.push(Way::new(process, steps.len(), way, &idle));
    }
    names.check(&source)?;
    if instructions {
        print!("{shares}");
        return Ok(());
    }
    ways.push(Way::together(&ways));
    match json {
        true => println!("{}", serde_json::to_string_pretty(&ways).doing("JSON")?),
        false => print!("{}", text(&ways)),
    }
    Ok(())
}

/// Functions of some steps, in the order in which they are first entered.
fn walked(
    steps: &[u64],
    image: &Image,
    tree: &mut Tree,
    names: &mut Names,
) -> Result<Vec<Function>, Failure> {
    let mut way: Vec<Function> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut addresses = BTreeSet::new();
    for address in steps.iter().filter(|address| addresses.insert(**address)) {
        for place in image.places(*address)? {
            let Some(function) = tree.at(place.file(), place.line())? else { continue };
            if MEASURING.iter().any(|it| function.file().starts_with(it)) {
                continue;
            }
            if seen.insert((function.file().to_owned(), function.line())) {
                names.compare(function, place.function());
                way.push(function.clone());
            }
        }
    }
    Ok(way)
}

/// Comparison of the names in the program with those in the source.
#[derive(Debug, Default)]
struct Names {
    compared: usize,
    others: Vec<String>,
}

impl Names {
    fn compare(&mut self, function: &Function, name: Option<&str>) {
        let Some(name) = name else { return };
        self.compared += 1;
        if name != function.plain() {
            let (file, line) = (function.file(), function.line());
            self.others.push(format!("{name} and {} ({file}:{line})", function.plain()));
        }
    }

    /// Refuses a source tree that is not the one of the program.
    fn check(&self, source: &std::path::Path) -> Result<(), Failure> {
        let source = source.display();
        if self.compared == 0 {
            return Err(Failure::new(format!(
                "no function of {source} was passed: name the build's source tree with --source, \
                 and build it with line tables"
            )));
        }
        if self.others.len() as f64 > OTHER_NAMES * self.compared as f64 {
            return Err(Failure::new(format!(
                "{source} is not the source of this build: {} of {} functions have other names, \
                 like {}",
                self.others.len(),
                self.compared,
                self.others[0]
            )));
        }
        Ok(())
    }
}

/// Length of a list of functions for a reader who follows it through the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Counts {
    functions: usize,
    files: usize,
    /// Changes to a file that was left before.
    returns: usize,
}

impl Counts {
    fn of(way: &[&Entry]) -> Self {
        let files: BTreeSet<&str> = way.iter().map(|it| it.file.as_str()).collect();
        let changes = way.windows(2).filter(|pair| pair[0].file != pair[1].file).count();
        // Each file but the first is entered once by a change that is no return.
        let returns = changes - files.len().saturating_sub(1);
        Self { functions: way.len(), files: files.len(), returns }
    }
}

/// A function of the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Entry {
    file: String,
    line: u32,
    name: String,
    /// Whether it is short, or passed as well by a thread that is woken for nothing.
    aside: bool,
}

/// The way through one process.
#[derive(Debug, Serialize)]
struct Way {
    process: &'static str,
    instructions: usize,
    all: Counts,
    /// Counts without the entries that are aside.
    main: Counts,
    functions: Vec<Entry>,
}

impl Way {
    fn new(
        process: &'static str,
        instructions: usize,
        way: Vec<Function>,
        idle: &[Function],
    ) -> Self {
        let functions = way.into_iter().map(|function| Entry {
            aside: function.length() <= ACCESSOR_LINES || idle.contains(&function),
            file: function.file().to_owned(),
            line: function.line(),
            name: function.name().to_owned(),
        });
        Self::of(process, instructions, functions.collect())
    }

    fn of(process: &'static str, instructions: usize, functions: Vec<Entry>) -> Self {
        let all: Vec<&Entry> = functions.iter().collect();
        let main: Vec<&Entry> = functions.iter().filter(|it| !it.aside).collect();
        let (all, main) = (Counts::of(&all), Counts::of(&main));
        Self { process, instructions, all, main, functions }
    }

    /// One way after the other; what was passed before is not listed again.
    fn together(ways: &[Self]) -> Self {
        let mut seen = HashMap::new();
        let mut functions: Vec<Entry> = Vec::new();
        for entry in ways.iter().flat_map(|way| &way.functions) {
            let place = *seen.entry((&entry.file, entry.line)).or_insert(functions.len());
            match functions.get_mut(place) {
                // A thread that is woken for nothing in one process may be at work in another.
                Some(known) => known.aside &= entry.aside,
                None => functions.push(entry.clone()),
            }
        }
        let instructions = ways.iter().map(|way| way.instructions).sum();
        Self::of("together", instructions, functions)
    }
}

/// The ways as lists, and a table of their lengths in Markdown.
fn text(ways: &[Way]) -> String {
    let mut text = String::new();
    let (together, processes) = ways.split_last().expect("at least the last");
    for Way { process, functions, .. } in processes {
        text += &format!("{process}:\n");
        let mut left = BTreeSet::new();
        for stay in functions.chunk_by(|one, next| one.file == next.file) {
            let file = &stay[0].file;
            let again = if left.insert(file) { "" } else { " (again)" };
            text += &format!("  {file}{again}\n");
            for Entry { line, name, aside, .. } in stay {
                let aside = if *aside { " -" } else { "" };
                text += &format!("    :{line} {name}{aside}\n");
            }
        }
        text += "\n";
    }
    text += &format!(
        "A dash marks functions of at most {ACCESSOR_LINES} lines, and those that a thread also \
         passes when it is\nwoken for nothing. The last columns leave them out.\n\n\
         | way of a get | instructions | functions | files | returns | without - | files | returns \
         |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    );
    for Way { process, instructions, all, main, .. } in processes.iter().chain([together]) {
        let counts = |it: &Counts| format!("{} | {} | {}", it.functions, it.files, it.returns);
        text += &format!("| {process} | {instructions} | {} | {} |\n", counts(all), counts(main));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(file: &str, first: u32, last: u32) -> Function {
        Function::new(format!("f{first}"), file.into(), (first, last))
    }

    #[test]
    fn a_file_that_was_left_and_entered_again_is_a_return() {
        let way = |files: &str| {
            let functions = files
                .chars()
                .zip(0..)
                .map(|(file, number)| function(&file.to_string(), 10 * number, 10 * number + 9));
            let Counts { functions, files, returns } =
                Way::new("asked", 0, functions.collect(), &[]).all;
            (functions, files, returns)
        };
        assert_eq!(way("a"), (1, 1, 0));
        assert_eq!(way("aab"), (3, 2, 0));
        assert_eq!(way("aba"), (3, 2, 1));
        assert_eq!(way("abcabca"), (7, 3, 4));
    }

    #[test]
    fn short_and_idle_functions_are_aside() {
        let idle = [function("a", 10, 30)];
        let way = vec![function("a", 1, 3), function("a", 10, 30), function("b", 1, 4)];
        let way = Way::new("asked", 7, way, &idle);
        assert_eq!(way.all, Counts { functions: 3, files: 2, returns: 0 });
        assert_eq!(way.main, Counts { functions: 1, files: 1, returns: 0 });
        let other = Way::new("serving", 5, vec![function("a", 10, 30), function("b", 1, 4)], &[]);
        let together = Way::together(&[way, other]);
        assert_eq!(together.instructions, 12);
        assert_eq!(together.all.functions, 3);
        assert_eq!(together.main, Counts { functions: 2, files: 2, returns: 0 });
        let text = text(&[together]);
        assert!(text.ends_with("| together | 12 | 3 | 2 | 0 | 2 | 2 | 0 |\n"), "{text}");
    }

    #[test]
    fn another_source_is_refused() {
        let mut names = Names::default();
        assert!(names.check("dir".as_ref()).is_err());
        names.compare(&function("a", 1, 3), Some("f1"));
        names.compare(&function("a", 2, 3), None);
        assert_eq!(names.check("dir".as_ref()), Ok(()));
        names.compare(&function("a", 3, 3), Some("g"));
        let failure = names.check("dir".as_ref()).expect_err("half of them");
        assert!(failure.to_string().contains("1 of 2 functions"), "{failure}");
        assert!(failure.to_string().contains("g and f3 (a:3)"), "{failure}");
    }
}
