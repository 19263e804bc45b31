//! What clients ask of names, and how each call ends by what its names stand for.

use std::collections::BTreeMap;

use piped_core::call::{Over, Removed};
use piped_core::status::Status;
use piped_sim::InodeId;

/// The names: some in the directory, the others in one below it.
pub(super) const NAMES: [&str; 6] = ["a", "b", "c", "sub/x", "sub/y", "sub/z"];
/// So many of them are in the directory itself.
pub(super) const TOP: usize = 3;
/// The directory below, and a file there that stays: so the directory is never empty.
pub(super) const SUB: &str = "sub";
pub(super) const KEPT: &str = "keep";

/// What a client asks of its names, which are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameCall {
    /// What is known of it.
    Stat {
        /// The name, by its number.
        name: usize,
    },
    /// The next names of the directory below, or of the directory itself.
    List {
        /// Whether it is the one below.
        below: bool,
        /// With what is known of each.
        stats: bool,
    },
    /// Makes an empty directory.
    Make {
        /// The name that it gets.
        name: usize,
        /// One that is there is as good.
        parents: bool,
    },
    /// Takes a name away.
    Remove {
        /// The name that goes.
        name: usize,
        /// What it must be.
        kind: Removed,
    },
    /// Gives something another name.
    Rename {
        /// The name that it has.
        from: usize,
        /// The name that it gets.
        to: usize,
        /// What becomes of something that has it.
        over: Over,
        /// Whether the change is stable then.
        durable: bool,
    },
    /// Gives a file one more name.
    Link {
        /// A name of the file.
        from: usize,
        /// The name that it gets.
        to: usize,
    },
    /// Copies the bytes of a file, which has none.
    Copy {
        /// The name of the file.
        from: usize,
        /// The name of the one that gets them.
        to: usize,
    },
    /// Makes the names of the directory stable.
    Sync,
    /// Something that cannot be, of a few.
    Strange {
        /// Which of them it is.
        number: usize,
    },
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Thing {
    Nothing,
    File(InodeId),
    Directory,
}

use Thing::{Directory, File, Nothing};

/// What some names stand for.
pub(super) type Things = BTreeMap<usize, Thing>;

/// What [`NameCall::Strange`] asks: to remove a path, and how that ends.
pub(super) const STRANGE: [(&str, Removed, Status); 8] = [
    ("../a", Removed::File, Status::Denied),
    ("/a", Removed::File, Status::Denied),
    ("", Removed::Any, Status::Invalid),
    ("a\0", Removed::File, Status::Invalid),
    ("gone/a", Removed::Any, Status::NotFound),
    ("sub/keep/a", Removed::Any, Status::NotDirectory),
    ("sub", Removed::Any, Status::NotEmpty),
    ("sub", Removed::File, Status::IsDirectory),
];

impl NameCall {
    /// The names that it is about.
    pub(super) fn names(self) -> Vec<usize> {
        match self {
            Self::Stat { name } | Self::Make { name, .. } | Self::Remove { name, .. } => vec![name],
            Self::Rename { from, to, .. } | Self::Link { from, to } | Self::Copy { from, to } => {
                vec![from, to]
            }
            Self::List { .. } | Self::Sync | Self::Strange { .. } => Vec::new(),
        }
    }

    /// How it ends, and what becomes of its names then.
    pub(super) fn outcome(self, now: impl Fn(usize) -> Thing) -> (Status, Things) {
        let changed = |status, changes: &[(usize, Thing)]| {
            let mut all: Things = self.names().into_iter().map(|name| (name, now(name))).collect();
            all.extend(changes.iter().copied());
            (status, all)
        };
        let same = |status| changed(status, &[]);
        match self {
            Self::Stat { name } if now(name) == Nothing => same(Status::NotFound),
            Self::Stat { .. } | Self::List { .. } | Self::Sync => same(Status::Ok),
            Self::Strange { number } => same(STRANGE[number].2),
            Self::Make { name, parents } => match now(name) {
                Nothing => changed(Status::Ok, &[(name, Directory)]),
                Directory if parents => same(Status::Ok),
                _ => same(Status::Exists),
            },
            Self::Remove { name, kind } => match (now(name), kind) {
                (Nothing, _) => same(Status::NotFound),
                (File(_), Removed::Directory) => same(Status::NotDirectory),
                (Directory, Removed::File) => same(Status::IsDirectory),
                _ => changed(Status::Ok, &[(name, Nothing)]),
            },
            Self::Rename { from, to, over, .. } => match (now(from), now(to), over) {
                (Nothing, ..) => same(Status::NotFound),
                (_, Nothing, Over::Exchange) => same(Status::NotFound),
                (_, File(_) | Directory, Over::Keep) => same(Status::Exists),
                // What it is called so already.
                _ if from == to => same(Status::Ok),
                (File(one), File(other), _) if one == other => same(Status::Ok),
                (one, other, Over::Exchange) => changed(Status::Ok, &[(from, other), (to, one)]),
                (File(_), Directory, _) => same(Status::IsDirectory),
                (Directory, File(_), _) => same(Status::NotDirectory),
                (one, ..) => changed(Status::Ok, &[(from, Nothing), (to, one)]),
            },
            Self::Link { from, to } => match (now(from), now(to)) {
                (Nothing, _) => same(Status::NotFound),
                (_, File(_) | Directory) => same(Status::Exists),
                (Directory, _) => same(Status::NotPermitted),
                (file, _) => changed(Status::Ok, &[(to, file)]),
            },
            Self::Copy { from, to } => same(match (now(from), now(to)) {
                (Nothing, _) => Status::NotFound,
                (Directory, _) => Status::IsDirectory,
                (_, Nothing) => Status::NotFound,
                (_, Directory) => Status::IsDirectory,
                (one, other) if one == other => Status::Invalid,
                _ => Status::Ok,
            }),
        }
    }

    /// Whether it changes names that are as it needs them.
    pub(super) const fn may_change(self) -> bool {
        matches!(
            self,
            Self::Make { .. } | Self::Remove { .. } | Self::Rename { .. } | Self::Link { .. }
        )
    }

    /// Whether what it changes is stable when it ends well.
    pub(super) const fn is_durable(self) -> bool {
        matches!(self, Self::Rename { durable: true, .. })
    }
}
