//! What a request came to, and how that looks in Python.

use std::os::unix::ffi::OsStrExt as _;

use piped_client::call::{Copied, Digest, Extent, ExtentKind, FileKind, Range, Space, Stat};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList};

use crate::fault::Fault;
use crate::page;

/// Which answer a request has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// There is none to read.
    Nothing,
    /// The number of bytes that were moved.
    Bytes,
    /// A number: of an atomic, or a wait.
    Value,
    /// A message: its bytes and its tag.
    Message,
    Stat,
    Space,
    Copied,
    Digest,
    /// A page of names, and where to go on.
    Names,
    /// A page of extents of a range, and where to go on.
    Extents(Range),
}

/// An answer, before it is an object of Python's: requests end where no Python can run.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    Nothing,
    Number(u64),
    Message(u64, u64),
    Stat(Stat),
    Space(Space),
    Digest([u8; 32]),
    Names(Vec<page::Name>, Option<u64>),
    Extents(Vec<Extent>, Option<u64>),
}

impl Outcome {
    /// The answer of a request without one to read.
    pub(crate) fn of(kind: Kind, bytes: u64, value: u64) -> Self {
        match kind {
            Kind::Bytes => Self::Number(bytes),
            Kind::Value => Self::Number(value),
            Kind::Message => Self::Message(bytes, value),
            _ => Self::Nothing,
        }
    }

    /// The answer of a call.
    pub(crate) fn read(kind: Kind, answer: &[u8]) -> Result<Self, Fault> {
        let unreadable = |_| Fault::unreadable();
        Ok(match kind {
            Kind::Stat => Self::Stat(Stat::parse(answer).map_err(unreadable)?),
            Kind::Space => Self::Space(Space::parse(answer).map_err(unreadable)?),
            Kind::Copied => Self::Number(Copied::parse(answer).map_err(unreadable)?.0),
            Kind::Digest => {
                let digest = answer.try_into().map(Digest).map_err(|_| Fault::unreadable())?;
                Self::Digest(digest.0)
            }
            Kind::Names => {
                let (names, next) = page::names(answer).map_err(unreadable)?;
                Self::Names(names, next)
            }
            Kind::Extents(range) => {
                let (extents, next) = page::extents(answer, range).map_err(unreadable)?;
                Self::Extents(extents, next)
            }
            _ if answer.is_empty() => Self::Nothing,
            _ => return Err(Fault::unreadable()),
        })
    }

    pub(crate) fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Self::Nothing => py.None().into_bound(py),
            Self::Number(number) => number.into_pyobject(py)?.into_any(),
            Self::Message(bytes, tag) => (*bytes, *tag).into_pyobject(py)?.into_any(),
            Self::Stat(stat) => stat_of(py, stat)?,
            Self::Space(space) => {
                static SPACE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
                let Space { total, free, available, files, files_free } = *space;
                SPACE
                    .import(py, "piped_io._types", "Space")?
                    .call1((total, free, available, files, files_free))?
            }
            Self::Digest(digest) => PyBytes::new(py, digest).into_any(),
            Self::Names(names, next) => {
                static NAME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
                let make = NAME.import(py, "piped_io._types", "Name")?;
                let list = PyList::empty(py);
                for (name, kind, stat) in names {
                    let stat = stat.as_ref().map(|stat| stat_of(py, stat)).transpose()?;
                    // As Python has names of files: bytes that are no text are kept.
                    let name = std::ffi::OsStr::from_bytes(name);
                    list.append(make.call1((name, word(*kind), stat))?)?;
                }
                (list, *next).into_pyobject(py)?.into_any()
            }
            Self::Extents(extents, next) => {
                static EXTENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
                let make = EXTENT.import(py, "piped_io._types", "Extent")?;
                let list = PyList::empty(py);
                for Extent { offset, length, kind } in extents {
                    let kind = match kind {
                        ExtentKind::Data => "data",
                        ExtentKind::Hole => "hole",
                        ExtentKind::Zero => "zero",
                    };
                    list.append(make.call1((*offset, *length, kind))?)?;
                }
                (list, *next).into_pyobject(py)?.into_any()
            }
        })
    }
}

fn word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Link => "link",
        FileKind::Other => "other",
    }
}

fn stat_of<'py>(py: Python<'py>, stat: &Stat) -> PyResult<Bound<'py, PyAny>> {
    static STAT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let ns = |(seconds, ns): (i64, u32)| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    STAT.import(py, "piped_io._types", "Stat")?.call1((
        word(stat.kind),
        stat.mode,
        stat.user,
        stat.group,
        stat.links,
        stat.length,
        stat.allocated,
        stat.inode,
        ns(stat.modified),
        ns(stat.changed),
    ))
}
