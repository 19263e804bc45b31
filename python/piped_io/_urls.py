"""What `piped://peer/export/path` names.

A path is taken as it stands, as fsspec's local file system takes it: `%20`, `#` and `?` are parts
of a name, because a name that is listed must open the file that has it.
"""

from __future__ import annotations

SCHEME = "piped://"

#: The peer's name for this node.
THIS_NODE = "localhost"


def parts_of(path: str) -> tuple[str | None, str, str] | None:
    """Peer (None: this node), export and path of `peer/export/path`; None: it names no export."""
    peer, _, rest = path.partition("/")
    export, _, below = rest.partition("/")
    if not peer or not export:
        return None
    return (None if peer == THIS_NODE else peer), export, below


def is_url(name: str) -> bool:
    """Whether a name is one of a node's, and not of this machine's file system."""
    return name.startswith(SCHEME)


def parse_url(url: str) -> tuple[str | None, str, str]:
    """Peer (None: this node), export and path of `piped://peer/export/path`, as they stand."""
    parts = parts_of(url[len(SCHEME) :]) if is_url(url) else None
    if parts is None:
        raise ValueError(f"{url!r} is not of the form piped://peer/export/path")
    return parts
