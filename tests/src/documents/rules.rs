//! How a block is tried, where that is not said by the block itself.

/// What a comment asks for: `<!-- doc-test: RULE -->`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// `fails N`: it ends with this exit code, because the document shows what is refused.
    Fails(i32),
    /// `shape`: what is printed has figures of a run; the first words of its lines agree.
    Shape,
    /// `device M:N`: runs where the file system of `/srv` lies on that device.
    Device(String),
    /// `file NAME`: not run; it is there under that name when commands run.
    File(String),
    /// `interrupt`: each command lasts until somebody ends it.
    Interrupt,
    /// `alone`: another way to where the text goes on from; runs on a machine that has seen nothing
    /// else of the document, on which the daemon then has to serve.
    Alone,
    /// `skip REASON`, one of [`REASONS`].
    Skip(String),
}

/// Why a block may not be run at all. A new reason belongs here, with what checks the commands
/// instead.
pub const REASONS: [&str; 7] = [
    // From the programs under test, with less compression.
    "tests build the packages with options",
    // Needs nightly, cargo-fuzz, and as long as one likes; `cargo test -p fuzz-doors` replays what
    // it found.
    "fuzzing takes nightly and hours",
    // `.ci/run` calls the short form.
    "it builds the rings anew and takes minutes",
    // A comparison of two builds of this very tree.
    "it builds two releases, which takes minutes",
    // `tests/nbd` does the same, where they are.
    "nbdkit and its clients need not be installed",
    // `packaging/kubernetes/check` reads what would run there.
    "an engine for containers, or a cluster, need not be there",
    "a second machine need not be there",
];

/// Where all commands of a document run, one after the other, as a reader types them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Two nodes that know each other and run: [`super::world`].
    Nodes,
    /// A machine with a service manager on which piped was never installed: [`super::machine`].
    /// Nothing is there that the document does not make. Said by `<!-- doc-test: machine -->`
    /// before the title.
    Machine,
}

impl Place {
    /// Reads what stands before a document's title.
    ///
    /// # Errors
    /// It says something else.
    pub fn parse(rule: Option<&str>) -> Result<Self, String> {
        match rule {
            None => Ok(Self::Nodes),
            Some("machine") => Ok(Self::Machine),
            Some(other) => Err(format!("no place `{other}`")),
        }
    }
}

/// A file that a reader has to write: where, if a block says so in a comment on its first line, as
/// in `# /etc/piped/a.toml`.
#[must_use]
pub fn file_of(block: &str) -> Option<&str> {
    let path = block.lines().next()?.strip_prefix("# ")?.trim();
    (path.starts_with('/') && !path.contains(char::is_whitespace)).then_some(path)
}

/// The command that writes it, if the directory is there.
#[must_use]
pub fn write(path: &str, text: &str) -> Typed {
    let text = format!("cat > {path} <<'END-OF-BLOCK'\n{text}END-OF-BLOCK\n");
    Typed { text, how: How::ToItsEnd, on_beta: false }
}

impl Rule {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        match (word, rest) {
            ("fails", code) => code.parse().map(Self::Fails).map_err(|error| error.to_string()),
            ("shape", "") => Ok(Self::Shape),
            ("alone", "") => Ok(Self::Alone),
            ("interrupt", "") => Ok(Self::Interrupt),
            ("device", device) => Ok(Self::Device(device.to_owned())),
            ("file", name) if !name.is_empty() => Ok(Self::File(name.to_owned())),
            ("skip", reason) if REASONS.contains(&reason) => Ok(Self::Skip(reason.to_owned())),
            ("skip", reason) => Err(format!("`{reason}` is not among the reasons: {REASONS:?}")),
            _ => Err(format!("no rule `{text}`")),
        }
    }
}

/// How a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The command runs until it ends by itself.
    ToItsEnd,
    /// The command runs until Ctrl-C; by then it must have printed something, and then it must end.
    UntilInterrupted {
        /// An exit code that is allowed beside 0.
        code: i32,
    },
    /// Beside what follows, to the end of the document.
    Beside,
}

const INTERRUPTED: How = How::UntilInterrupted { code: 130 };

/// Commands that do not end by themselves, or not soon, by their first words. That is theirs, not a
/// document's.
const LASTING: [(&str, How); 5] = [
    ("piped --config", How::Beside),
    ("remote_pager offer", How::Beside),
    ("pipectl stat 1", INTERRUPTED),
    ("pipectl calibrate", INTERRUPTED),
    // What was measured is shown; rows are missing.
    ("target/release/bench sensitivity", How::UntilInterrupted { code: 3 }),
];

/// A command as it is typed: a line, or several that a backslash joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Typed {
    /// The command as the document prints it, comment included.
    pub text: String,
    /// How the command is run.
    pub how: How,
    /// Whether it is typed on the other node: its comment begins with `on beta`.
    pub on_beta: bool,
}

/// Takes a block apart where its commands do not all run in one go; one piece where they do.
#[must_use]
pub fn typed(block: &str, interrupt: bool) -> Vec<Typed> {
    let mut pieces: Vec<Typed> = Vec::new();
    let mut line = String::new();
    for part in block.split_inclusive('\n') {
        line.push_str(part);
        if part.ends_with("\\\n") {
            continue;
        }
        let text = std::mem::take(&mut line);
        let how = LASTING.iter().find(|(words, _)| text.starts_with(words));
        let how = if interrupt { INTERRUPTED } else { how.map_or(How::ToItsEnd, |it| it.1) };
        let on_beta = text.rsplit_once(" # ").is_some_and(|(_, note)| note.starts_with("on beta"));
        match pieces.last_mut() {
            Some(last) if how == How::ToItsEnd && last.how == how && last.on_beta == on_beta => {
                last.text.push_str(&text);
            }
            _ => pieces.push(Typed { text, how, on_beta }),
        }
    }
    assert!(line.is_empty(), "it ends in the middle of a command: {line}");
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_cut_where_a_command_lasts_or_is_typed_elsewhere() {
        let block =
            "one \\\n  two\nthree\npipectl stat 1  # seconds\nfour  # on beta\nfive # here\n";
        let pieces = typed(block, false);
        let short: Vec<_> =
            pieces.iter().map(|it| (it.text.as_str(), it.how, it.on_beta)).collect();
        let expected = [
            ("one \\\n  two\nthree\n", How::ToItsEnd, false),
            ("pipectl stat 1  # seconds\n", INTERRUPTED, false),
            ("four  # on beta\n", How::ToItsEnd, true),
            ("five # here\n", How::ToItsEnd, false),
        ];
        assert_eq!(short, expected);
    }

    #[test]
    fn a_block_that_names_a_file_is_written_there() {
        assert_eq!(file_of("# /etc/piped/conf.d/a.toml\n[x]\n"), Some("/etc/piped/conf.d/a.toml"));
        for none in ["[x]\n", "# a comment\n", "# /two words\n", "#/etc/x\n", ""] {
            assert_eq!(file_of(none), None, "{none}");
        }
        assert_eq!(Place::parse(Some("machine")), Ok(Place::Machine));
        assert!(Place::parse(Some("somewhere")).is_err());
    }

    #[test]
    fn only_known_reasons_excuse_a_block() {
        assert!(Rule::parse("skip it takes long").is_err());
        assert!(Rule::parse(&format!("skip {}", REASONS[0])).is_ok());
        assert_eq!(Rule::parse("fails 4"), Ok(Rule::Fails(4)));
        assert!(Rule::parse("fails").is_err() && Rule::parse("sometimes").is_err());
    }
}
