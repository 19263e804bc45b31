//! Peers that are found: something says where they are, and their keys say whether they are the
//! ones.
#![forbid(unsafe_code)]

mod dns;
mod etcd;
mod files;
mod many;
mod scene;
