"""Members of an archive, unpacked within bounds: what a zip or its manifest says of itself is not believed.

Place: below ``archive``. Input: a zip, what its manifest says of a member. Output: its bytes in a temporary file; or,
as text, why they are not taken.
Method: names first, so that what no cache holds is never unpacked. Then sizes: each kind has a largest one; beyond
``SMALL`` nothing unpacks to more than ``MOST_RATIO`` times what it takes in the archive, and nor do all together. Then
the bytes, piece by piece, until they are more than was said.
Invariants: a member takes no more memory than a piece, whatever it claims.
Units: bytes.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, BinaryIO

from pydantic import BaseModel, ConfigDict

from mixbackend.storage.tables import TABLES

ARTIFACT = re.compile(r"artifacts/([0-9a-f]{64})\.artifact")
ROWS = re.compile(rf"rows/({'|'.join(TABLES)})\.json")
MOST_OF_ARTIFACT, MOST_OF_ROWS = 4 << 30, 256 << 20
"""More than an engine with the weights of a model takes; more than a whole database does."""
SMALL = 4 << 20
MOST_RATIO = 100
"""Rows, the most regular members, were seen to shrink to a twentieth."""
_PIECE = 1 << 20
_DAMAGES = (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, ValueError)


class Member(BaseModel):
    """What a manifest says of a member."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sha256: str
    size: int


@dataclass
class Unpacker:
    """Unpacks members of one archive.

    Attributes:
        archive: it.
        left: so many bytes may still come of it.
    """

    archive: zipfile.ZipFile
    left: int

    @classmethod
    def of(cls, archive: zipfile.ZipFile) -> Unpacker:
        """One for an archive: the archive's size bounds what comes of it."""
        packed = sum(info.compress_size for info in archive.infolist())
        size = _size(archive.fp) if archive.fp is not None else 0
        # Members that lie over one another may claim more than the file has.
        return cls(archive, SMALL + MOST_RATIO * min(packed, size))

    @contextmanager
    def unpacked(self, name: str, member: Member) -> Iterator[BinaryIO | str]:
        """A member's bytes, from their beginning; or why they are not taken."""
        why = self._why_not(name, member)
        if why:
            yield why
            return
        with tempfile.TemporaryFile() as file:
            why = self._unpack(name, member, file)
            file.seek(0)
            yield why or file

    def _why_not(self, name: str, member: Member) -> str:
        """Why a member is not even opened."""
        most = MOST_OF_ROWS if ROWS.fullmatch(name) else MOST_OF_ARTIFACT if ARTIFACT.fullmatch(name) else None
        if most is None:
            return "is nothing that a cache holds"
        try:
            packed = self.archive.getinfo(name).compress_size
        except KeyError:
            return "is missing"
        if member.size < 0 or member.size > most:
            return f"would unpack to {member.size} bytes, of which there may be {most}"
        if member.size > max(SMALL, MOST_RATIO * packed):
            return f"would unpack to {member.size} bytes, more than {MOST_RATIO} times what it takes in the archive"
        if member.size > self.left:
            return f"would unpack to {member.size} bytes, with others more than {MOST_RATIO} times the archive"
        return ""

    def _unpack(self, name: str, member: Member, file: IO[bytes]) -> str:
        digest, taken = hashlib.sha256(), 0
        try:
            with self.archive.open(name) as source:
                # One byte more than there may be: whatever the zip says, no more is unpacked.
                while piece := source.read(min(_PIECE, member.size + 1 - taken)):
                    taken += len(piece)
                    digest.update(piece)
                    file.write(piece)
        except KeyError:
            return "is missing"
        except _DAMAGES as error:
            return f"is damaged: {error}"
        finally:
            self.left -= taken
        return "" if digest.hexdigest() == member.sha256 else "does not have the bytes that the manifest says"


def _size(file: IO[bytes]) -> int:
    place = file.tell()
    try:
        return file.seek(0, 2)
    finally:
        file.seek(place)
