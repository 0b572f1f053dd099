"""The source of a plug-in as a digest, where it may change under one and the same fingerprint.

Place: asked by the registry; becomes a part of the fingerprint of backends that are no installed packages: an author
that mends a plug-in does not raise its version each time, and must not meet quarantines, timings and artifacts of the
code of before.
Input: a backend. Output: a digest of the files of its class and of the classes that this one is made of: of the whole
package where the module is in one, of the module alone where it is a lone file, of the class where there is no file
(a notebook); ``""`` for what is installed, and for what comes along.
Invariants: files are read once per class: a module that was imported stays as it is in a running process, whatever its
file says later.
Non-goals: what a lone module imports from its neighbours; data files.
"""

from __future__ import annotations

import hashlib
import inspect
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mixbackend.contracts import Backend
from mixbackend.host.process_facts import on_reset, process_fact

SUFFIXES = frozenset({".py", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".so", ".pyd"})
MOST_FILES = 2000
"""Of a package; further ones, in the order of their names, do not count."""
_OURS = "mixbackend"
_DIGITS = 16


def source_digest(backend: Backend) -> str:
    """The digest of a backend's source; ``""`` where its fingerprint is enough."""
    return _digest_of(type(backend))


@cache
def _digest_of(kind: type) -> str:
    digest = hashlib.sha256()
    found = False
    for item in kind.__mro__:
        module = item.__module__
        if (
            module.partition(".")[0] in (_OURS, "builtins", "abc")
            or module.partition(".")[0] in sys.stdlib_module_names
        ):
            continue
        place = _file_of(module)
        if place is None:
            digest.update(_text_of(item).encode())
        elif _is_installed(place):
            continue
        else:
            for part in _files_beside(place):
                digest.update(f"{part.name} {_content(part)}\n".encode())
        found = True
    return digest.hexdigest()[:_DIGITS] if found else ""


on_reset(_digest_of.cache_clear)


def _file_of(module: str) -> Path | None:
    """The file of an imported module; ``None`` if it came from none that is still there."""
    name = getattr(sys.modules.get(module), "__file__", None)
    place = Path(name) if name else None
    return place.resolve() if place is not None and place.is_file() else None


def _text_of(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        # Typed at a prompt: two of them cannot be told apart, and they are gone with the process.
        return kind.__qualname__


def _is_installed(place: Path) -> bool:
    return any(folder in place.parents for folder in _installed_folders())


@process_fact
def _installed_folders() -> tuple[Path, ...]:
    names = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    return tuple(Path(name).resolve() for name in {*names, site.getusersitepackages()} if name)


def _files_beside(place: Path) -> Iterator[Path]:
    """The files of the outermost package that a module is in; the module alone where it is in none."""
    package = place.parent
    if not (package / "__init__.py").is_file():
        yield place
        return
    while (package.parent / "__init__.py").is_file():
        package = package.parent
    found = (item for item in package.rglob("*") if item.suffix in SUFFIXES and item.is_file())
    yield from sorted(found)[:MOST_FILES]


def _content(place: Path) -> str:
    try:
        return hashlib.sha256(place.read_bytes()).hexdigest()
    except OSError as error:
        return f"cannot be read: {type(error).__name__}"
