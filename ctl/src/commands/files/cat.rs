//! `pipectl cat`: the bytes of files, one behind the other.

use std::io::{self, IsTerminal as _, Write as _};

use clap::{Args as ClapArgs, ValueHint};
use piped_client::{OpenOptions, StripReader, Strips};
use piped_config::Bytes;
use piped_text::{shown_bytes, shown_lines};

use super::each;
use super::found::found;
use super::tree::Tree;
use crate::args::ClientDoor;
use crate::below::Below;
use crate::client;
use crate::failure::Failure;

/// Arguments of `pipectl cat`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
On a terminal, what would move the cursor is escaped; files and pipes get the
bytes as they are. Quote patterns (*, ?, [a-z]), which are matched below the
export.")]
pub(crate) struct CatArgs {
    /// PEER:EXPORT/PATH, or :EXPORT/PATH for an export of this node
    #[arg(value_name = "PLACE", required = true, value_hint = ValueHint::Url)]
    places: Vec<Below>,

    /// Leave out so many bytes at the beginning of each file
    #[arg(long, value_name = "SIZE", default_value = "0B")]
    offset: Bytes,

    /// Show at most so many bytes of each file
    #[arg(long, value_name = "SIZE")]
    length: Option<Bytes>,

    #[command(flatten)]
    door: ClientDoor,
}

pub(crate) fn run(args: &CatArgs, json: bool) -> Result<(), Failure> {
    if json {
        return Err(Failure::usage("cat shows the bytes of files: leave out --json"));
    }
    let mut tree = Tree::connect(&args.door)?;
    let places = found(&mut tree, &args.places)?;
    let mut escaper = io::stdout().is_terminal().then(Escaper::default);
    each(&places, |place| {
        let handle = tree.open_file(place, OpenOptions::read()).map_err(|it| it.of(place))?;
        let length = args.length.map_or(u64::MAX, |length| length.0);
        let end = args.offset.0.saturating_add(length).min(handle.len());
        if args.offset.0 >= end {
            return Ok(());
        }
        let range = args.offset.0..end;
        let (client, queue) = tree.client_and_queue();
        let fail = |error| client::strips(place, &error);
        let mut strips = StripReader::open(client, &handle, range, Strips::new()).map_err(fail)?;
        while let Some(strip) = strips.next(queue).map_err(fail)? {
            match &mut escaper {
                Some(escaper) => write(escaper.escaped(&strip).as_bytes())?,
                None => write(&strip)?,
            }
        }
        match &mut escaper {
            Some(escaper) => write(escaper.rest().as_bytes()),
            None => Ok(()),
        }
    })
}

fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    written.map_err(|error| Failure::stdout(&error))
}

/// Escapes what a terminal would obey, strip by strip.
#[derive(Debug, Default)]
struct Escaper {
    /// The beginning of a character that goes on in the next strip.
    begun: Vec<u8>,
}

impl Escaper {
    fn escaped(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut text = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(&shown_lines(chunk.valid()));
            let invalid = chunk.invalid();
            let begins = std::str::from_utf8(invalid).is_err_and(|it| it.error_len().is_none());
            if begins && chunks.peek().is_none() {
                self.begun = invalid.to_vec();
            } else {
                text.push_str(&shown_bytes(invalid));
            }
        }
        text
    }

    fn rest(&mut self) -> String {
        shown_bytes(&std::mem::take(&mut self.begun)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_strips_cut_are_whole_and_others_are_escaped() {
        let text = "one\ttwo\n\u{1b}[2J é 名 🙂\n".as_bytes();
        let bytes = [text, b"\xff\xe5\x90"].concat();
        for size in 1..bytes.len() {
            let mut escaper = Escaper::default();
            let mut shown: String =
                bytes.chunks(size).map(|strip| escaper.escaped(strip)).collect();
            shown.push_str(&escaper.rest());
            assert_eq!(shown, "one\ttwo\n\\u{1b}[2J é 名 🙂\n\\xff\\xe5\\x90", "{size}");
        }
    }
}
