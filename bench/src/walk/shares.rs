//! How many instructions each function of the way executes.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::rc::Rc;

use crate::failure::Failure;
use crate::lines::{Image, Tree};

/// Smallest share of all instructions that has a line of its own.
const SHOWN: f64 = 0.002;

/// Where an instruction counts: file and name of the function, and its line.
type Home = Rc<(String, String, u32)>;

/// Instructions of one process by function of the tree.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// In the function's own lines, and in code of others that it calls (the standard library,
    /// packages, the C library).
    by_function: BTreeMap<Home, (usize, usize)>,
    all: usize,
}

impl Shares {
    pub(super) fn of(steps: &[u64], image: &Image, tree: &mut Tree) -> Result<Self, Failure> {
        let mut homes: HashMap<u64, Option<(Home, bool)>> = HashMap::new();
        let mut shares = Self::default();
        let mut last = None;
        for address in steps {
            if !homes.contains_key(address) {
                let home = home(*address, image, tree)?;
                homes.insert(*address, home);
            }
            let (home, own) = match &homes[address] {
                Some((home, own)) => {
                    last = Some(home.clone());
                    (home.clone(), *own)
                }
                // Code of others, out of line, counts for the function that was there before it.
                None => (last.clone().unwrap_or_default(), false),
            };
            shares.add(home, own);
        }
        Ok(shares)
    }

    fn add(&mut self, home: Home, own: bool) {
        let (mine, others) = self.by_function.entry(home).or_default();
        *(if own { mine } else { others }) += 1;
        self.all += 1;
    }

    /// A table, most instructions first.
    pub(super) fn text(&self, process: &str) -> String {
        let mut rows: Vec<_> = self.by_function.iter().collect();
        rows.sort_by_key(|(_, (own, others))| std::cmp::Reverse(own + others));
        let mut text = format!(
            "{process}: {} instructions\n{:>7} {:>7} {:>7}  function\n",
            self.all, "all", "own", "others"
        );
        for (home, (own, others)) in rows {
            let (file, name, line) = &**home;
            let all = own + others;
            if all as f64 >= SHOWN * self.all as f64 {
                let _ = writeln!(text, "{all:7} {own:7} {others:7}  {name} {file}:{line}");
            }
        }
        text + "\n"
    }
}

/// The innermost function of the tree at an address, and whether the instruction is of its own
/// lines. None in code of others.
fn home(address: u64, image: &Image, tree: &mut Tree) -> Result<Option<(Home, bool)>, Failure> {
    let mut own = true;
    for place in image.places(address)?.iter().rev() {
        if let Some(function) = tree.at(place.file(), place.line())? {
            let (file, name) = (function.file().to_owned(), function.name().to_owned());
            return Ok(Some((Rc::new((file, name, function.line())), own)));
        }
        own = false;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_instructions_come_first_and_few_are_left_out() {
        let mut shares = Shares::default();
        let home = |name: &str| Rc::new(("a.rs".to_owned(), name.to_owned(), 7));
        for count in 0..1000 {
            shares.add(home(if count == 0 { "rare" } else { "main" }), count % 2 == 0);
        }
        shares.add(home("less"), true);
        shares.add(home("less"), true);
        shares.add(home("less"), false);
        let text = shares.text("asked");
        let rows: Vec<&str> = text.trim().lines().skip(2).collect();
        assert_eq!(rows.len(), 2, "{text}");
        assert!(rows[0].ends_with("    999     499     500  main a.rs:7"), "{text}");
        assert!(rows[1].ends_with("      3       2       1  less a.rs:7"), "{text}");
    }
}
