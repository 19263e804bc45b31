//! Fields of the messages. The reader takes them from the front and has nothing left at the end;
//! the writer puts them one behind the other.

use core::mem::size_of;

use piped_text::is_name;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Access, HandshakeFault, MESSAGE_BYTES_MAX};
use crate::layout::VERSION;

/// First field of the two messages that open a session: `piped-h1` read as little-endian bytes.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"piped-h1");

const ACCESS_READ: u8 = 1 << 0;
const ACCESS_WRITE: u8 = 1 << 1;
const ACCESS_ATOMIC: u8 = 1 << 2;
const ACCESS_NAMES: u8 = 1 << 3;

pub(super) struct Reader<'a> {
    rest: &'a [u8],
    total: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(message: &'a [u8]) -> Result<Self, HandshakeFault> {
        let total = message.len();
        if total > MESSAGE_BYTES_MAX {
            return Err(HandshakeFault::Length { expected: MESSAGE_BYTES_MAX, actual: total });
        }
        Ok(Self { rest: message, total })
    }

    pub(super) fn fixed<T: FromBytes>(&mut self) -> Result<T, HandshakeFault> {
        let expected = self.total - self.rest.len() + size_of::<T>();
        let (value, rest) = T::read_from_prefix(self.rest)
            .map_err(|_| HandshakeFault::Length { expected, actual: self.total })?;
        self.rest = rest;
        Ok(value)
    }

    /// Checks magic and version before the body, since another version may have another length.
    pub(super) fn opening(&self) -> Result<(), HandshakeFault> {
        let (magic, rest) = u64::read_from_prefix(self.rest).map_err(|_| HandshakeFault::Magic)?;
        let (version, _) = u32::read_from_prefix(rest).map_err(|_| HandshakeFault::Magic)?;
        if magic != MAGIC {
            return Err(HandshakeFault::Magic);
        }
        if version == VERSION { Ok(()) } else { Err(HandshakeFault::Version(version)) }
    }

    pub(super) fn text(
        &mut self,
        field: &'static str,
        bytes: u16,
        max: usize,
    ) -> Result<String, HandshakeFault> {
        let text = core::str::from_utf8(self.name(field, bytes, max)?);
        Ok(text.map_err(|_| HandshakeFault::Text { field, max })?.to_owned())
    }

    /// A name that need not be text.
    pub(super) fn name(
        &mut self,
        field: &'static str,
        bytes: u16,
        max: usize,
    ) -> Result<&'a [u8], HandshakeFault> {
        let bytes = usize::from(bytes);
        if bytes > max {
            return Err(HandshakeFault::Text { field, max });
        }
        let expected = self.total - self.rest.len() + bytes;
        let (text, rest) = self
            .rest
            .split_at_checked(bytes)
            .ok_or(HandshakeFault::Length { expected, actual: self.total })?;
        self.rest = rest;
        checked_bytes(field, text, max)?;
        Ok(text)
    }

    pub(super) fn finish(self) -> Result<(), HandshakeFault> {
        let expected = self.total - self.rest.len();
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(HandshakeFault::Length { expected, actual: self.total })
        }
    }
}

pub(super) struct Writer<'a> {
    into: &'a mut [u8],
    pub(super) at: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(into: &'a mut [u8]) -> Self {
        Self { into, at: 0 }
    }

    pub(super) fn fixed<T: IntoBytes + Immutable>(
        &mut self,
        value: T,
    ) -> Result<(), HandshakeFault> {
        self.bytes(value.as_bytes())
    }

    pub(super) fn texts(&mut self, texts: [&str; 2]) -> Result<(), HandshakeFault> {
        texts.into_iter().try_for_each(|text| self.bytes(text.as_bytes()))
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), HandshakeFault> {
        let have = self.into.len();
        let to = self
            .into
            .get_mut(self.at..self.at + bytes.len())
            .ok_or(HandshakeFault::Buffer(have))?;
        to.copy_from_slice(bytes);
        self.at += bytes.len();
        Ok(())
    }
}

/// The length of a string that keeps to the rules of a name; texts keep to them, too, for names and
/// texts end up in logs and on terminals.
pub(super) fn checked(field: &'static str, text: &str, max: usize) -> Result<u16, HandshakeFault> {
    checked_bytes(field, text.as_bytes(), max)
}

/// The length of a path that keeps to the rules of a name.
pub(super) fn checked_bytes(
    field: &'static str,
    name: &[u8],
    max: usize,
) -> Result<u16, HandshakeFault> {
    if name.len() > max || !is_name(name) {
        return Err(HandshakeFault::Text { field, max });
    }
    u16::try_from(name.len()).map_err(|_| HandshakeFault::Text { field, max })
}

pub(super) fn zero(field: &'static str, value: u64) -> Result<(), HandshakeFault> {
    if value == 0 { Ok(()) } else { Err(HandshakeFault::Field(field)) }
}

pub(super) fn flag(field: &'static str, value: u8) -> Result<bool, HandshakeFault> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(HandshakeFault::Field(field)),
    }
}

pub(super) fn bits(access: Access) -> u8 {
    (u8::from(access.read) * ACCESS_READ)
        | (u8::from(access.write) * ACCESS_WRITE)
        | (u8::from(access.atomic) * ACCESS_ATOMIC)
        | (u8::from(access.names) * ACCESS_NAMES)
}

pub(super) fn access(bits: u8) -> Result<Access, HandshakeFault> {
    if bits & !(ACCESS_READ | ACCESS_WRITE | ACCESS_ATOMIC | ACCESS_NAMES) != 0 {
        return Err(HandshakeFault::Field("access"));
    }
    Ok(Access {
        read: bits & ACCESS_READ != 0,
        write: bits & ACCESS_WRITE != 0,
        atomic: bits & ACCESS_ATOMIC != 0,
        names: bits & ACCESS_NAMES != 0,
    })
}
