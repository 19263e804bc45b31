//! Files and directories below exports, as command lines name them: `PEER:EXPORT/PATH`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use clap::builder::{OsStringValueParser, TypedValueParser as _, ValueParser, ValueParserFactory};
use piped_text::shown_bytes;

/// What lies below an export of a node, or the export itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Below {
    /// Node that has the export; empty for this one.
    peer: String,
    /// Name of the export; empty for all that the node has.
    export: String,
    /// Path below the export, without slashes at its ends; empty for the export.
    path: Vec<u8>,
    /// Whether a slash said that it is a directory.
    slash: bool,
}

/// How places are written.
pub(crate) const HOW: &str = "write PEER:EXPORT/PATH, or :EXPORT/PATH for an export of this node";

impl Below {
    /// Reads a place from the command line, in whatever bytes.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let colon = bytes.iter().position(|&byte| byte == b':');
        let (peer, rest) = colon.map(|at| (&bytes[..at], &bytes[at + 1..])).ok_or(HOW)?;
        let slash = rest.iter().position(|&byte| byte == b'/');
        let (export, path) = slash.map_or((rest, &[][..]), |at| (&rest[..at], &rest[at + 1..]));
        let text = |bytes| std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| HOW);
        let (peer, export) = (text(peer)?, text(export)?);
        if peer.contains('/') || (export.is_empty() && slash.is_some()) {
            return Err(HOW.to_owned());
        }
        let parts = path.split(|&byte| byte == b'/');
        let parts: Vec<&[u8]> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
        Ok(Self { peer, export, path: parts.join(&b'/'), slash: rest.ends_with(b"/") })
    }

    /// The node as requests name it.
    pub(crate) fn peer(&self) -> Option<&str> {
        (!self.peer.is_empty()).then_some(self.peer.as_str())
    }

    /// The name of the export.
    pub(crate) fn export(&self) -> &str {
        &self.export
    }

    /// The path below the export.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// The components of the path.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.path.split(|&byte| byte == b'/').filter(|part| !part.is_empty())
    }

    /// Whether the text ended in a slash.
    pub(crate) const fn is_marked(&self) -> bool {
        self.slash
    }

    /// Whether it is the export itself.
    pub(crate) fn is_export(&self) -> bool {
        self.path.is_empty()
    }

    /// Whether both are of one export.
    pub(crate) fn shares_export(&self, other: &Self) -> bool {
        (&self.peer, &self.export) == (&other.peer, &other.export)
    }

    /// Another path of the same export.
    pub(crate) fn with_path(&self, path: &[u8]) -> Self {
        Self { path: path.to_vec(), slash: false, ..self.clone() }
    }

    /// Another path of the same export, with the slash that this one has.
    pub(crate) fn marked_with_path(&self, path: &[u8]) -> Self {
        Self { slash: self.slash, ..self.with_path(path) }
    }

    /// A name in this directory.
    pub(crate) fn child(&self, name: &[u8]) -> Self {
        match self.path.as_slice() {
            [] => self.with_path(name),
            path => self.with_path(&[path, b"/", name].concat()),
        }
    }

    /// The directory and the name in it; none for the export itself.
    pub(crate) fn split(&self) -> Option<(Self, &[u8])> {
        let slash = self.path.iter().rposition(|&byte| byte == b'/');
        let (parent, name) = match slash {
            Some(at) => (&self.path[..at], &self.path[at + 1..]),
            None => (&[][..], self.path.as_slice()),
        };
        (!name.is_empty()).then(|| (self.with_path(parent), name))
    }

    /// The directory that it lies in; the export lies in itself.
    pub(crate) fn parent(&self) -> Self {
        self.split().map_or_else(|| self.clone(), |(parent, _)| parent)
    }

    /// The place as it is typed.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let front = format!("{}:{}", self.peer, self.export);
        let slash: &[u8] = if self.export.is_empty() { b"" } else { b"/" };
        [front.as_bytes(), slash, &self.path].concat()
    }
}

/// Paths may not be text, so clap must not require it.
impl ValueParserFactory for Below {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        OsStringValueParser::new().try_map(|text| Self::parse(&text)).into()
    }
}

/// Text for people: characters that cannot be shown are escaped.
impl std::fmt::Display for Below {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&shown_bytes(&self.bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Below, String> {
        Below::parse(OsStr::new(text))
    }

    #[test]
    fn places_are_a_node_an_export_and_a_path() {
        for (text, shown, parts, marked) in [
            ("b:data/sub/f", "b:data/sub/f", 2, false),
            (":data//./sub/", ":data/sub", 1, true),
            (":data", ":data/", 0, false),
            ("b:data/", "b:data/", 0, true),
            ("b:", "b:", 0, false),
            ("b:data/../x", "b:data/../x", 2, false),
        ] {
            let place = parsed(text).expect(text);
            assert_eq!(place.to_string(), shown);
            assert_eq!((place.parts().count(), place.is_marked()), (parts, marked), "{text}");
        }
        for text in ["", "/tmp/x", "dir/b:data/f", "b:/f"] {
            assert!(parsed(text).is_err(), "{text}");
        }
        let odd = Below::parse(OsStr::from_bytes(b"b:data/\xff\n")).expect("a path is bytes");
        assert_eq!(odd.to_string(), "b:data/\\xff\\n");
        assert!(Below::parse(OsStr::from_bytes(b"\xff:data/f")).is_err(), "a node's name is text");
    }

    #[test]
    fn a_place_has_a_parent_until_the_export() {
        let place = parsed("b:data/a/b").expect("well formed");
        let (parent, name) = place.split().expect("not the export");
        assert_eq!((parent.to_string().as_str(), name), ("b:data/a", &b"b"[..]));
        assert_eq!(parent.child(b"b"), place);
        let export = parent.parent();
        assert!(export.is_export() && export.split().is_none() && export.parent() == export);
        assert_eq!(export.child(b"a").to_string(), "b:data/a");
    }
}
