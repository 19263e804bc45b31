//! Why a configuration is refused: where, which key, and what to write instead.

use core::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A layer of the configuration and, in a file, the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Name of the file, environment variable or command-line override.
    pub layer: String,
    /// Line in a file, counted from 1.
    pub line: Option<usize>,
}

impl Place {
    /// Place of values that nobody has set.
    #[must_use]
    pub fn defaults() -> Self {
        Self { layer: "defaults".to_owned(), line: None }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.layer),
            None => f.write_str(&self.layer),
        }
    }
}

/// A configuration that cannot be used.
#[derive(Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}{}", path.display(), remedy(source))]
    Read {
        /// Path of the file or directory.
        path: PathBuf,
        /// Reason that the kernel gives.
        source: io::Error,
    },
    /// Text that is not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// Place of the mistake.
        place: Place,
        /// Message of the parser.
        message: String,
    },
    /// Key that does not exist.
    #[error("{place}: there is no key `{key}`; {hint}")]
    UnknownKey {
        /// Place of the key.
        place: Place,
        /// Name of the key.
        key: String,
        /// Nearest key, or the keys that exist.
        hint: String,
    },
    /// Value of the wrong kind.
    #[error("{place}: bad value for `{key}`: {message}")]
    BadValue {
        /// Place of the value.
        place: Place,
        /// Name of the key.
        key: String,
        /// Problem with the value.
        message: String,
    },
    /// Well-formed value that cannot work.
    #[error("{place}: `{key}` {problem}")]
    Invalid {
        /// Place where the key was set; `defaults` if nowhere.
        place: Place,
        /// Name of the key.
        key: String,
        /// Problem and its fix.
        problem: String,
    },
    /// Override that is not `key=value`.
    #[error("--set {0}: write key=value, as in --set shards.count=2")]
    Override(String),
    /// Layers that are well-formed one by one but not together.
    #[error("the layers of the configuration contradict each other: {0}")]
    Merge(String),
}

impl ConfigError {
    /// Place of the mistake, if it has one.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        match self {
            Self::Read { path, .. } => {
                Some(Place { layer: path.display().to_string(), line: None })
            }
            Self::Syntax { place, .. }
            | Self::UnknownKey { place, .. }
            | Self::BadValue { place, .. }
            | Self::Invalid { place, .. } => Some(place.clone()),
            Self::Override(_) | Self::Merge(_) => None,
        }
    }

    /// Key that the error is about, if there is one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::UnknownKey { key, .. }
            | Self::BadValue { key, .. }
            | Self::Invalid { key, .. } => Some(key),
            _ => None,
        }
    }
}

/// Advice about a file that cannot be read.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; create it, or name another",
        io::ErrorKind::PermissionDenied => {
            "; give the user that reads it the right to (the unit's is piped), or try as root"
        }
        io::ErrorKind::IsADirectory => "; name a file in it",
        _ => "",
    }
}

/// All mistakes of a configuration, at least one.
pub struct Findings(Vec<ConfigError>);

impl Findings {
    /// Returns an error if anything was found.
    ///
    /// # Errors
    /// All of `found`, if it is not empty.
    pub fn none_or(found: Vec<ConfigError>) -> Result<(), Self> {
        if found.is_empty() { Ok(()) } else { Err(Self(found)) }
    }

    /// All mistakes, in the order found.
    #[must_use]
    pub fn all(&self) -> &[ConfigError] {
        &self.0
    }
}

impl From<ConfigError> for Findings {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, finding) in self.0.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            write!(f, "{finding}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Findings {}

/// `Debug` is what `main`, `unwrap` and `expect` print of an error, so it is the text. The texts
/// here contain those of their sources.
macro_rules! debug_is_text {
    ($($error:ty),* $(,)?) => {$(
        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

debug_is_text! {
    ConfigError, Findings, crate::admin::BodyError, crate::network::NetworkError,
    crate::secret_file::KeyFileError, crate::node_key::NoPublicKey, crate::quantity::QuantityError,
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_main_prints_of_an_error_is_its_text() {
        let key = "0".parse::<crate::PublicKey>().expect_err("too short");
        let size = "one".parse::<crate::Bytes>().expect_err("no number");
        let sources =
            crate::Sources { file: Some("/nonexistent/file".into()), ..Default::default() };
        let findings = crate::load(&sources).expect_err("no such file");
        assert!(findings.to_string().starts_with("cannot read /nonexistent/file"), "{findings}");
        assert_eq!(format!("{:?}", findings.all()[0]), findings.all()[0].to_string());
        let all: [(Box<dyn std::error::Error>, String); 3] = [
            (key.clone().into(), key.to_string()),
            (size.clone().into(), size.to_string()),
            (findings.into(), "cannot read /nonexistent/file".to_owned()),
        ];
        for (error, text) in all {
            assert!(format!("{error:?}").starts_with(&text), "{error:?}");
        }
    }
}
