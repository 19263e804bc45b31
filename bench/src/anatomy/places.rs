//! At which step an instruction of a process is.

use std::collections::HashMap;
use std::fs;

use super::table::{self, MEASURING, SHARED, STEPS};
use crate::failure::{Doing as _, Failure};
use crate::lines::{Image, Place, Tree};

/// Longest piece of code without a line, in bytes.
const NO_LINE: u64 = 256;

/// Where an instruction counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Home {
    /// A step, by its place among [`STEPS`].
    Step(usize),
    /// Code of others that is a function of its own, by the name of its package or library.
    Other(String),
    /// The kernel, where no step called it: its own threads.
    Kernel,
    /// Steps and code of others that a request does not enter.
    Rest,
}

impl Home {
    /// Whether it is a step of the request itself.
    pub(super) fn is_of_request(&self) -> bool {
        matches!(self, Self::Step(step) if *step != MEASURING)
    }

    /// Name of the line in reports.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Step(step) => STEPS[*step].name.to_owned(),
            Self::Other(name) => format!("other: {name}"),
            Self::Kernel => String::from("kernel: no caller"),
            Self::Rest => String::from("other steps"),
        }
    }
}

/// A file in the memory of a process.
#[derive(Debug)]
struct Mapping {
    begin: u64,
    end: u64,
    name: String,
}

/// The addresses of a process.
pub(super) struct Places<'a> {
    image: Image,
    tree: &'a mut Tree,
    /// Pieces of memory with code.
    code: Vec<Mapping>,
    known: HashMap<u64, Home>,
}

impl<'a> Places<'a> {
    pub(super) fn of(process: u32, tree: &'a mut Tree) -> Result<Self, Failure> {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).doing("its memory")?;
        let code = maps.lines().filter_map(code).collect();
        Ok(Self { image: Image::of(process)?, tree, code, known: HashMap::new() })
    }

    /// Where the instruction at an address counts. Code that the compiler put into a function of
    /// the tree is the function's.
    pub(super) fn home(&mut self, address: u64) -> Result<Home, Failure> {
        if let Some(home) = self.known.get(&address) {
            return Ok(home.clone());
        }
        let home = self.find(address)?;
        self.known.insert(address, home.clone());
        Ok(home)
    }

    fn find(&mut self, address: u64) -> Result<Home, Failure> {
        let places = self.places(address)?;
        let mut shared = None;
        for place in places.iter().rev() {
            let Some(file) = self.tree.within(place.file()) else { continue };
            match table::step_of(&file) {
                Some(SHARED) => shared = Some(Home::Step(SHARED)),
                Some(step) => return Ok(Home::Step(step)),
                None => return Ok(Home::Other(file)),
            }
        }
        let other = || match places.first() {
            Some(place) => package(place.file()).to_owned(),
            None => self.library(address).to_owned(),
        };
        Ok(shared.unwrap_or_else(|| Home::Other(other())))
    }

    /// Places of an address. Of code that the compiler made for no line, those of the code before
    /// it.
    fn places(&self, address: u64) -> Result<Vec<Place>, Failure> {
        for address in (address.saturating_sub(NO_LINE)..=address).rev() {
            let places = self.image.places(address)?;
            if !places.is_empty() || !self.image.has(address) {
                return Ok(places);
            }
        }
        Ok(Vec::new())
    }

    /// The step that called, by the words on the stack above the called function: the first that is
    /// an address after an instruction of a step.
    pub(super) fn caller(&mut self, stack: &[u64]) -> Result<Option<Home>, Failure> {
        for word in stack {
            if self.mapping(*word).is_none() {
                continue;
            }
            let home = self.home(word - 1)?;
            if matches!(home, Home::Step(_)) {
                return Ok(Some(home));
            }
        }
        Ok(None)
    }

    fn mapping(&self, address: u64) -> Option<&Mapping> {
        self.code.iter().find(|it| (it.begin..it.end).contains(&address))
    }

    /// Name of the library that has an address.
    fn library(&self, address: u64) -> &str {
        let name = self.mapping(address).map_or("no file", |mapping| &*mapping.name);
        match name.split_once(".so").map_or(name, |(name, _)| name).rsplit('/').next() {
            Some(name) => name.trim_matches(['[', ']']),
            None => name,
        }
    }
}

/// A line of `/proc/PID/maps`, if that memory has code.
fn code(line: &str) -> Option<Mapping> {
    let mut words = line.split_whitespace();
    let (begin, end) = words.next()?.split_once('-')?;
    let is_code = words.next()?.contains('x');
    let name = words.nth(3).unwrap_or("no file").to_owned();
    let number = |text| u64::from_str_radix(text, 16).ok();
    let mapping = Mapping { begin: number(begin)?, end: number(end)?, name };
    is_code.then_some(mapping)
}

/// Name of the package of a source file that is not of the tree, without its version.
fn package(file: &str) -> &str {
    let Some((_, rest)) = file.split_once("/registry/src/") else {
        return if file.contains("/library/") { "std" } else { "no package" };
    };
    let directory = rest.split('/').nth(1).unwrap_or(rest);
    let is_version = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
    let name = directory.match_indices('-').find(|(place, _)| is_version(&directory[place + 1..]));
    name.map_or(directory, |(place, _)| &directory[..place])
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn packages_have_their_names() {
        let of = |rest: &str| format!("/home/me/.cargo/registry/src/index-1/{rest}");
        assert_eq!(package(&of("crc-fast-1.9.0/src/lib.rs")), "crc-fast");
        assert_eq!(package(&of("io-uring-0.7.0-rc.1/src/lib.rs")), "io-uring");
        assert_eq!(package("/rustc/0123/library/core/src/slice/mod.rs"), "std");
        assert_eq!(package("../sysdeps/syscall.S"), "no package");
    }

    #[test]
    fn only_memory_with_code_is_kept() {
        let libc = code("7f00-7f80 r-xp 00001000 fe:00 2 /lib/libc.so.6").expect("it has code");
        assert_eq!((libc.begin, libc.end, &*libc.name), (0x7f00, 0x7f80, "/lib/libc.so.6"));
        assert!(code("7f00-7f80 rw-p 00001000 fe:00 2 /lib/libc.so.6").is_none());
        assert_eq!(code("7f00-7f80 r-xp 0 00:00 0").expect("it has code").name, "no file");
    }

    #[inline(never)]
    fn here() -> u64 {
        std::hint::black_box(1)
    }

    #[test]
    fn a_function_of_the_tree_has_its_step_and_a_library_its_name() {
        assert_eq!(here(), 1);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("of the workspace");
        let mut tree = Tree::new(root);
        let mut places = Places::of(std::process::id(), &mut tree).expect("this program");
        let address = here as fn() -> u64 as usize as u64;
        assert_eq!(places.home(address).expect("readable"), Home::Step(0));
        let libc = libc::getpid as *const () as usize as u64;
        assert_eq!(places.home(libc).expect("readable"), Home::Other("libc".to_owned()));
        let caller = places.caller(&[0, libc + 1, address + 1]).expect("readable");
        assert_eq!(caller, Some(Home::Step(0)));
        assert_eq!(places.caller(&[7, libc + 1]).expect("readable"), None);
    }
}
