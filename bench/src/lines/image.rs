//! From addresses in a process to places in source files, by the line tables of its program.

use std::fs;
use std::path::Path;

use addr2line::Loader;

use crate::failure::{Doing as _, Failure};

/// A place in a source file, with the function as the compiler names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Path as it was when the program was built.
    file: String,
    line: u32,
    /// Plain name of the function; none for a closure.
    function: Option<String>,
}

impl Place {
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    pub(crate) fn line(&self) -> u32 {
        self.line
    }

    pub(crate) fn function(&self) -> Option<&str> {
        self.function.as_deref()
    }
}

/// A program in the memory of a process.
pub(crate) struct Image {
    loader: Loader,
    begin: u64,
    end: u64,
}

impl Image {
    /// The program that a process runs.
    pub(crate) fn of(process: u32) -> Result<Self, Failure> {
        let program = format!("/proc/{process}/exe");
        let path = fs::read_link(&program).doing(&program)?;
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).doing("its memory")?;
        let (begin, end) = bounds(&maps, &path)
            .ok_or_else(|| Failure::new(format!("{} is not in its memory", path.display())))?;
        let loader = Loader::new(program).doing("debug information")?;
        Ok(Self { loader, begin, end })
    }

    /// Whether an address is in the program, and not in a library.
    pub(crate) fn has(&self, address: u64) -> bool {
        (self.begin..self.end).contains(&address)
    }

    /// Places of an address: the function, and those that the compiler put into it there, outermost
    /// first. Addresses in libraries have none.
    pub(crate) fn places(&self, address: u64) -> Result<Vec<Place>, Failure> {
        if !self.has(address) {
            return Ok(Vec::new());
        }
        let mut places = Vec::new();
        let mut frames = self.loader.find_frames(address - self.begin).doing("frames")?;
        while let Some(frame) = frames.next().doing("frames")? {
            let Some(location) = frame.location else { continue };
            let (Some(file), Some(line)) = (location.file, location.line) else { continue };
            let name = frame.function.map(|name| {
                name.demangle().map_or_else(|_| String::new(), std::borrow::Cow::into_owned)
            });
            let function = name.as_deref().and_then(plain);
            places.push(Place { file: file.to_owned(), line, function });
        }
        places.reverse();
        Ok(places)
    }
}

/// First and last address of the program at `path`, by the lines of `/proc/PID/maps`.
fn bounds(maps: &str, path: &Path) -> Option<(u64, u64)> {
    let path = path.to_str()?;
    let mut of_it = maps.lines().filter(|line| line.ends_with(path)).filter_map(|line| {
        let (begin, end) = line.split_once(' ')?.0.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(begin)?, number(end)?))
    });
    let first = of_it.next()?;
    Some(of_it.fold(first, |(begin, end), it| (begin.min(it.0), end.max(it.1))))
}

/// Name of a function without its path, its generic arguments and the compiler's suffixes; none if
/// it has no name of its own, as a closure.
fn plain(name: &str) -> Option<String> {
    // Arrows of function types are no brackets.
    let name = name.replace("->", "");
    let name = name.split(" (.llvm").next().unwrap_or(&name);
    let name = match name.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 => name,
        _ => name,
    };
    let mut depth = 0;
    let arguments = name.char_indices().rev().find(|(_, letter)| {
        match letter {
            '>' => depth += 1,
            '<' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    let end = arguments.filter(|_| name.ends_with('>')).map_or(name.len(), |(place, _)| place);
    let last = name[..end].trim_end_matches("::").rsplit("::").next()?;
    let is_word = !last.is_empty() && last.chars().all(|it| it.is_alphanumeric() || it == '_');
    is_word.then(|| last.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        let plain = |name| plain(name).unwrap_or_default();
        assert_eq!(plain("piped::io::Ring::enter::h0123456789abcdef"), "enter");
        assert_eq!(plain("a::<impl b::Shard>::receive::h0123456789abcdef (.llvm.12)"), "receive");
        assert_eq!(plain("<a::Uring as b::Io>::push"), "push");
        assert_eq!(plain("tally<a::take::{closure_env#0}<fn(u8) -> b::C>>"), "tally");
        assert_eq!(plain("core::take::<a::B<c::D>>"), "take");
        assert_eq!(plain("a::b::{{closure}}::h0123456789abcdef"), "");
        assert_eq!(plain("{closure#1}<a::B>"), "");
        assert_eq!(plain("main"), "main");
    }

    #[test]
    fn a_program_is_all_its_mappings() {
        let maps = "\
5000-6000 r--p 00000000 fe:00 1 /bin/piped
6000-8000 r-xp 00001000 fe:00 1 /bin/piped
9000-a000 r-xp 00000000 fe:00 2 /lib/piped.so
a000-b000 rw-p 00003000 fe:00 1 /bin/piped
";
        assert_eq!(bounds(maps, Path::new("/bin/piped")), Some((0x5000, 0xb000)));
        assert_eq!(bounds(maps, Path::new("/bin/other")), None);
    }

    #[inline(never)]
    fn here() -> u64 {
        std::hint::black_box(1)
    }

    #[test]
    fn a_function_of_this_program_is_found() {
        assert_eq!(here(), 1);
        let image = Image::of(std::process::id()).expect("this program has debug information");
        let places = image.places(here as fn() -> u64 as usize as u64).expect("readable");
        let place = places.first().expect("it has a place");
        assert_eq!(place.function.as_deref(), Some("here"));
        assert!(place.file.ends_with("bench/src/lines/image.rs"), "{place:?}");
        assert_eq!(image.places(0).expect("no address of it"), Vec::new());
    }
}
