//! Where instructions of a program are in the source: by the line tables of the program, and by the
//! functions of the source tree.

mod image;
mod source;

pub(crate) use self::image::{Image, Place};
pub(crate) use self::source::{Function, Tree};
