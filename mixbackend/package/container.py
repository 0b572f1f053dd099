"""The container: a package as a zip, with members held against their digests, and weights that can be mapped.

Place: below ``exporting`` and ``opening``. Input: members; later, a path. Output: a file that appears whole or not at
all; the bytes of members.
Invariants: what is read has the bytes that the manifest says; no member takes more memory than it says, nor more than
its kind may; nothing is unpacked to a path that the file names. The weights lie uncompressed, aligned to
``weights.ALIGNMENT``, so that they are mapped where they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from mixbackend.backends.common.private_folder import untrusted
from mixbackend.backends.common.whole_file import replacing
from mixbackend.contracts import PackageError
from mixbackend.package.model import FORMAT, MANIFEST, VERSION, WEIGHTS, Manifest, Member
from mixbackend.package.weights import ALIGNMENT, MappedWeights

_LONGEST_MANIFEST = 64 << 20
_LONGEST_MEMBER = 4 << 30
_LOCAL = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_PADDING = 0xD935
"""Kind of an extra field that holds nothing: what tools that align members use."""
_ZIP64 = 20
"""Bytes of the extra field that ``zipfile`` adds to a member of any size."""
_PIECE = 1 << 24
_DAMAGES = (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, OSError, ValueError)
_REMEDY = "make the package anew with mixbackend.export, or copy it again"


class PackageWriter:
    """Writes the members of one package.

    Args:
        archive: the zip.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.members: dict[str, Member] = {}

    def add(self, name: str, content: bytes) -> str:
        """Add a member; its name."""
        self._archive.writestr(_info(name, zipfile.ZIP_DEFLATED), content, compresslevel=6)
        self.members[name] = Member(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        return name

    def add_mapped(self, name: str, fill: Callable[[Callable[[Any], object]], None]) -> None:
        """Add a member that is mapped later.

        Args:
            fill: is given a function that takes bytes.
        """
        info = _info(name, zipfile.ZIP_STORED)
        file = self._archive.fp
        assert file is not None
        head = file.tell() + _LOCAL.size + len(name.encode()) + _ZIP64 + 4
        padding = -head % ALIGNMENT
        info.extra = struct.pack("<HH", _PADDING, padding) + b"\0" * padding
        digest, size = hashlib.sha256(), 0
        with self._archive.open(info, "w", force_zip64=True) as member:

            def write(content: Any) -> None:
                nonlocal size
                digest.update(content)
                size += len(content)
                member.write(content)

            fill(write)
        self.members[name] = Member(sha256=digest.hexdigest(), size=size)

    def finish(self, manifest: Manifest) -> None:
        """Add the manifest."""
        self._archive.writestr(_info(MANIFEST, zipfile.ZIP_DEFLATED), manifest.model_dump_json())


def _info(name: str, compression: int) -> zipfile.ZipInfo:
    # Without the time of day: equal content gives equal bytes.
    info = zipfile.ZipInfo(name)
    info.compress_type = compression
    info.external_attr = 0o644 << 16
    return info


@contextlib.contextmanager
def written_package(path: Path) -> Iterator[PackageWriter]:
    """A package that takes the place of ``path`` where the block ends well."""
    with replacing(path.resolve()) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            yield PackageWriter(archive)
        # For others to read; what is being written is for this user alone.
        os.chmod(file.name, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644)


class PackageFile:
    """An open package.

    Args:
        path: of the file.

    Raises:
        PackageError: it is none, damaged, or of a newer version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._file: IO[bytes] = self.path.open("rb")
        except OSError as error:
            raise PackageError(f"{self.path} cannot be opened: {error.strerror or error}") from error
        try:
            self._archive = zipfile.ZipFile(self._file)
            self.manifest = self._manifest()
        except _DAMAGES as error:
            self.close()
            raise self._damage(f"it is no package, or was cut short: {error}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; what is mapped stays."""
        self._file.close()

    def __enter__(self) -> PackageFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def distrusted(self) -> str:
        """Why native code is not taken from it; empty if this user or the administrator alone can write to the file."""
        return untrusted(os.fstat(self._file.fileno()), reading=True)

    def read(self, name: str) -> bytes:
        """The bytes of a member.

        Raises:
            PackageError: it is missing, or has other bytes than the manifest says.
        """
        member = self._member(name)
        if member.size > _LONGEST_MEMBER:
            raise self._damage(f"{name} would take {member.size} bytes")
        content = self._unpacked(name, member.size)
        if hashlib.sha256(content).hexdigest() != member.sha256:
            raise self._damage(f"{name} does not have the bytes that the manifest says")
        return content

    def weights(self) -> MappedWeights:
        """The weights, mapped; what is written into them stays in this process.

        Raises:
            PackageError: they have other bytes than the manifest says.
        """
        member = self._member(WEIGHTS)
        begin = self._begin(WEIGHTS, member)
        page = begin - begin % mmap.ALLOCATIONGRANULARITY
        try:
            content = mmap.mmap(self._file.fileno(), begin - page + member.size, access=mmap.ACCESS_COPY, offset=page)
        except (OSError, ValueError) as error:
            raise self._damage(f"its weights cannot be mapped: {error}") from error
        digest = hashlib.sha256()
        with memoryview(content) as view:
            for place in range(begin - page, begin - page + member.size, _PIECE):
                digest.update(view[place : min(place + _PIECE, begin - page + member.size)])
        if digest.hexdigest() != member.sha256:
            raise self._damage(f"{WEIGHTS} does not have the bytes that the manifest says")
        return MappedWeights(content, begin - page, member.size)

    def _manifest(self) -> Manifest:
        try:
            text = self._unpacked(MANIFEST, _LONGEST_MANIFEST, exact=False)
        except KeyError:
            raise self._foreign("it has no manifest") from None
        version = _version(text)
        if version is None:
            raise self._foreign("its manifest is not that of a package")
        if version > VERSION:
            raise PackageError(
                f"{self.path} has version {version} of the format, and this mixbackend reads up to {VERSION}",
                hint="load it with the mixbackend that made it, or a newer one",
            )
        try:
            return Manifest.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise self._damage(f"its manifest is not well formed: {where}: {first['msg']}") from error

    def _member(self, name: str) -> Member:
        member = self.manifest.members.get(name)
        if member is None:
            raise self._damage(f"{name} is not in the manifest")
        return member

    def _unpacked(self, name: str, size: int, exact: bool = True) -> bytes:
        """A member, up to so many bytes."""
        try:
            with self._archive.open(name) as file:
                content = file.read(size + 1)
        except KeyError:
            if name == MANIFEST:
                raise
            raise self._damage(f"{name} is missing") from None
        except _DAMAGES as error:
            raise self._damage(f"{name} is damaged: {error}") from error
        if len(content) > size or (exact and len(content) != size):
            raise self._damage(f"{name} does not have {size} bytes")
        return content

    def _begin(self, name: str, member: Member) -> int:
        """Where the bytes of a stored member begin in the file."""
        try:
            info = self._archive.getinfo(name)
            self._file.seek(info.header_offset)
            magic, name_length, extra_length = _LOCAL.unpack(self._file.read(_LOCAL.size))
        except (KeyError, struct.error) as error:
            raise self._damage(f"{name} is missing") from error
        begin = int(info.header_offset + _LOCAL.size + name_length + extra_length)
        stored = info.compress_type == zipfile.ZIP_STORED and magic == _LOCAL_MAGIC
        if not stored or begin + member.size > os.fstat(self._file.fileno()).st_size:
            raise self._damage(f"{name} does not lie in it as it should")
        return begin

    def _damage(self, what: str) -> PackageError:
        return PackageError(f"{self.path} cannot be loaded: {what}", hint=_REMEDY)

    def _foreign(self, what: str) -> PackageError:
        return PackageError(
            f"{self.path} is no package of mixbackend: {what}",
            hint="torch.export.save, torch.save and AOTInductor write other files; mixbackend.export writes packages",
        )


def _version(text: bytes) -> int | None:
    """What a manifest says of its version; ``None`` if it is none."""
    import json

    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("format") != FORMAT or type(data.get("version")) is not int:
        return None
    return int(data["version"])
