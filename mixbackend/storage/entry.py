"""One artifact as a file: a header that proves its content, then the content.

Place: below the artifact store; the same bytes lie in the local and in the remote level.
Form: magic (8 bytes), SHA-256 over key and content (32), length of the content (8, big-endian), content.
Invariants: an entry under the wrong name, cut short, or changed in one bit does not decode. The digest finds accidents;
against malice there is the ownership of the folder.
"""

from __future__ import annotations

import hashlib
import struct

MAGIC = b"MIXBART1"
_HEADER = struct.Struct(">8s32sQ")


def encode(key: str, content: bytes) -> bytes:
    """Bytes of the file for this key."""
    return _HEADER.pack(MAGIC, _digest(key, content), len(content)) + content


def decode(key: str, data: bytes) -> bytes | str:
    """The content; or, as text, why these bytes are not the entry of this key."""
    if len(data) < _HEADER.size:
        return f"is cut short ({len(data)} bytes)"
    magic, digest, length = _HEADER.unpack_from(data)
    if magic != MAGIC:
        return "is not an artifact"
    content = data[_HEADER.size :]
    if len(content) != length:
        return f"is cut short ({len(content)} of {length} bytes)"
    return content if _digest(key, content) == digest else "does not have the bytes that were written"


def _digest(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + content).digest()
