"""One entry as a file: a header that proves its content, then what made it, then the content.

Place: below the artifact store and the remote level; the same bytes lie in both, and in archives.
Form: magic (8 bytes), SHA-256 over key, label and content (32), length of the label (4, big-endian), length of the
content (8, big-endian), the label (a JSON object), the content.
Invariants: an entry under the wrong name, cut short, or changed in one bit does not decode. The digest finds accidents;
against malice there is the ownership of the folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
from dataclasses import asdict, dataclass
from typing import BinaryIO

MAGIC = b"MIXBART3"
_HEADER = struct.Struct(">8s32sIQ")
_LONGEST_LABEL = 1 << 16


@dataclass(frozen=True, slots=True)
class Label:
    """What made an entry; for people and for cleaning up, never part of what is looked up.

    Attributes:
        backend, fingerprint: of the code; ``""`` where that is not known.
        device: name of the device it was made for.
        contract, weights, region: what else its key is made of; see ``artifact_key``.
    """

    backend: str = ""
    fingerprint: str = ""
    device: str = ""
    contract: str = ""
    weights: str = ""
    region: str = ""


UNKNOWN = Label()


@dataclass(frozen=True, slots=True)
class Entry:
    """A decoded entry."""

    content: bytes
    label: Label


def encode(key: str, content: bytes, label: Label = UNKNOWN) -> bytes:
    """Bytes of the file for this key."""
    label_bytes = json.dumps({name: text for name, text in asdict(label).items() if text}).encode()
    return (
        _HEADER.pack(MAGIC, _digest(key, label_bytes, content), len(label_bytes), len(content)) + label_bytes + content
    )


def decode(key: str, data: bytes) -> Entry | str:
    """The entry; or, as text, why these bytes are not the entry of this key."""
    return read(key, io.BytesIO(data))


def read(key: str, file: BinaryIO) -> Entry | str:
    """The same from a file that lies open at its beginning; content is not copied."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return f"is cut short ({len(header)} bytes)"
    magic, digest, label_length, length = _HEADER.unpack(header)
    if magic != MAGIC or label_length > _LONGEST_LABEL:
        return "is not an entry of this version"
    label_bytes, content = file.read(label_length), file.read()
    if (len(label_bytes), len(content)) != (label_length, length):
        return f"has {len(label_bytes) + len(content)} of {label_length + length} bytes behind its header"
    if _digest(key, label_bytes, content) != digest:
        return "does not have the bytes that were written"
    label = read_label(header + label_bytes)
    return "does not say what made it" if label is None else Entry(content, label)


def read_label(data: bytes) -> Label | None:
    """What made the entry that begins with these bytes; unproven. ``None`` if that cannot be read."""
    if len(data) < _HEADER.size:
        return None
    magic, _, length, _ = _HEADER.unpack_from(data)
    if magic != MAGIC or length > _LONGEST_LABEL:
        return None
    try:
        fields = json.loads(data[_HEADER.size : _HEADER.size + length])
        label = Label(**fields)
    except (ValueError, TypeError):
        return None
    return label if all(isinstance(value, str) for value in fields.values()) else None


HEAD_BYTES = _HEADER.size + _LONGEST_LABEL
"""As many bytes of a file as ``read_label`` ever needs."""


def _digest(key: str, label: bytes, content: bytes) -> bytes:
    lengths = struct.pack(">IQ", len(label), len(content))
    found = hashlib.sha256(b"\0".join((key.encode(), lengths, label)))
    # Content may be hundreds of megabytes: it is not copied for this.
    found.update(content)
    return found.digest()
