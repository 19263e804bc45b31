//! The documents as a reader takes them: every command is typed, every link followed.
//!
//! ```text
//! page     Markdown ► blocks, links, anchors, words in `code`
//! rules    what a block's comment asks for; which commands last; which are not run, and why
//! world    where commands run: two nodes in namespaces of their own, which end with the test
//! machine  where those of a document run that installs: a container with a service manager
//! ```
//!
//! All of a document runs in one place, in its order: what one block makes the next one finds, and
//! what none has made is not there.
//!
//! A block in `sh` runs as it is printed, by `bash -euo pipefail`. What cannot is said in a comment
//! before the block, which no reader sees: `<!-- doc-test: fails 4 -->`. See [`rules::Rule`].

pub mod machine;
pub mod page;
pub mod rules;
pub mod world;
