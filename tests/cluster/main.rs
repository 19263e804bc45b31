//! Nodes that trust each other because one key signed theirs: real daemons, and programs that want
//! to be taken for them.
#![forbid(unsafe_code)]

mod etcd;
mod joining;
mod scene;
mod times;
