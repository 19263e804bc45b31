"""What calls of files and directories answer."""

from __future__ import annotations

from typing import NamedTuple


class Stat(NamedTuple):
    """What is known of a file or directory; a link is not followed."""

    #: "file", "directory", "link" or "other".
    kind: str
    #: Permission bits.
    mode: int
    user: int
    group: int
    links: int
    #: Length in bytes.
    length: int
    #: Bytes that it takes on the device.
    allocated: int
    inode: int
    #: Time of the last change of its bytes, in nanoseconds since 1970.
    modified_ns: int
    #: Time of the last change of anything, in nanoseconds since 1970.
    changed_ns: int


class Space(NamedTuple):
    """Room on a file system, in bytes; its files are counted."""

    total: int
    free: int
    available: int
    files: int
    files_free: int


class Name(NamedTuple):
    """A name in a directory."""

    name: str
    kind: str
    stat: Stat | None


class Extent(NamedTuple):
    """A range of a file that is all "data", "hole" or "zero"; in bytes."""

    offset: int
    length: int
    kind: str
