//! Files as command lines name them: here, or below an export of a node.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _, ValueParser, ValueParserFactory};
use piped_text::shown_bytes;

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A file opened by this program.
    Local(PathBuf),
    /// A file below an export.
    Remote {
        /// Node that has the export; empty for this one.
        peer: String,
        /// Name of the export.
        export: String,
        /// Path below the export.
        path: PathBuf,
    },
}

impl Place {
    /// Reads a place from the command line, in whatever bytes.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let colon = bytes.iter().position(|&byte| byte == b':');
        let Some((peer, rest)) = colon
            .map(|colon| (&bytes[..colon], &bytes[colon + 1..]))
            .filter(|(peer, _)| !peer.contains(&b'/'))
        else {
            return Ok(Self::Local(PathBuf::from(text)));
        };
        let slash = rest.iter().position(|&byte| byte == b'/');
        let (export, path) = slash.map_or((rest, &[][..]), |at| (&rest[..at], &rest[at + 1..]));
        // Names of nodes and exports come from configurations, so they are text.
        match (std::str::from_utf8(peer), std::str::from_utf8(export)) {
            (Ok(peer), Ok(export)) if !export.is_empty() && !path.is_empty() => Ok(Self::Remote {
                peer: peer.to_owned(),
                export: export.to_owned(),
                path: PathBuf::from(OsStr::from_bytes(path)),
            }),
            _ => {
                Err("write PATH, or PEER:EXPORT/PATH (./a:b for a local file with a colon)"
                    .to_owned())
            }
        }
    }

    /// Writes the place for a command line.
    pub(crate) fn text(&self) -> OsString {
        match self {
            Self::Local(path) => path.clone().into_os_string(),
            Self::Remote { peer, export, path } => {
                let mut text = OsString::from(format!("{peer}:{export}/"));
                text.push(path);
                text
            }
        }
    }
}

/// Paths may not be text, so clap must not require it.
impl ValueParserFactory for Place {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        OsStringValueParser::new().try_map(|text| Self::parse(&text)).into()
    }
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(OsStr::new(text))
    }
}

/// Text for people: characters that cannot be shown are escaped.
impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&shown_bytes(self.text().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_paths_or_remote() {
        let remote = |peer: &str, export: &str, path: &str| Place::Remote {
            peer: peer.to_owned(),
            export: export.to_owned(),
            path: path.into(),
        };
        for (text, place) in [
            ("/tmp/x", Place::Local("/tmp/x".into())),
            ("./a:b", Place::Local("./a:b".into())),
            ("b:data/sub/f", remote("b", "data", "sub/f")),
            (":data/f", remote("", "data", "f")),
        ] {
            assert_eq!(text.parse(), Ok(place.clone()), "{text}");
            assert_eq!(place.text(), text);
        }
        let odd = OsStr::from_bytes(b"b:data/\xff\xfe");
        let place = Place::parse(odd).expect("a path is bytes");
        assert_eq!(
            (place.text().as_os_str(), place.to_string().as_str()),
            (odd, "b:data/\\xff\\xfe")
        );
        assert!(Place::parse(OsStr::from_bytes(b"\xff:data/f")).is_err(), "a node's name is text");
    }
}
