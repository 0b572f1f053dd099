"""``mixbackend cache info|clear|export|import``: what is remembered on this machine, and how to carry it elsewhere."""

from __future__ import annotations

import os
import platform
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import torch
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

import mixbackend
from mixbackend import registry
from mixbackend.backends.common.private_folder import untrusted, usual_cache_folder
from mixbackend.backends.common.whole_file import replacing
from mixbackend.commands.output import console, print_json, quiet_stdout
from mixbackend.configuration import Config, load_config
from mixbackend.contracts import StorageError
from mixbackend.host.devices import devices_here
from mixbackend.storage import ArtifactStore, Database, ThisMachine, private_folder
from mixbackend.storage.archive import Brought, read_archive, write_archive
from mixbackend.storage.eviction import KINDS, clear_folder
from mixbackend.storage.eviction import clear as clear_cache
from mixbackend.storage.inventory import NATIVE_CODE, Inventory, take_stock

_MOST_REASONS = 20
"""Rows of refusals as text; JSON has all."""
_OF_OPTION = {"measurements": ("rates",), "decisions": ("decisions", "plans")}


@dataclass(frozen=True)
class Cache:
    """An opened cache folder and what counts as out of date in it."""

    folder: Path
    database: Database
    store: ArtifactStore
    machine: ThisMachine
    config: Config


def info(config: str | None, dir: str | None, as_json: bool) -> None:
    """Print what lies in the cache."""
    cache = open_cache(config, dir)
    limit = cache.config.cache.max_gb * 1e9
    found = take_stock(cache.folder, cache.database, cache.store, cache.machine, limit, cache.config.cache.remote)
    if as_json:
        print_json(found.to_dict())
    else:
        _print_inventory(found)


def clear(
    config: str | None, dir: str | None, only: Mapping[str, bool], stale: bool, dry_run: bool, as_json: bool
) -> None:
    """Remove what is named by ``only``, or everything."""
    cache = open_cache(config, dir)
    named = [option for option, wanted in only.items() if wanted]
    kinds = {kind for option in named for kind in _OF_OPTION.get(option, (option,))} if named else set(KINDS)
    gone = clear_cache(cache.database, cache.store, cache.machine, kinds & set(KINDS), stale, dry_run)
    native = usual_cache_folder() / NATIVE_CODE
    # What lies in the folder goes with it; what lies elsewhere only if it was asked for.
    if "native" in named or (not named and not stale and native.parent == cache.folder):
        gone["native code"] = clear_folder(native, dry_run)
    if as_json:
        print_json({"folder": str(cache.folder), "dry_run": dry_run, "removed": dict(gone)})
        return
    counts = ", ".join(f"{count} {kind}" for kind, count in gone.items() if count) or "nothing"
    print(f"{cache.folder}: {'would remove' if dry_run else 'removed'} {counts}")


def export(target: str, config: str | None, dir: str | None, as_json: bool) -> None:
    """Write rows and artifacts into one file."""
    cache = open_cache(config, dir)
    with _destination(target) as file, _bar("exporting") as show:
        written = write_archive(file, cache.database, cache.store, cache.machine, _versions(), show)
        size = file.tell()
    if as_json:
        print_json({"archive": target, "bytes": size, "written": dict(written)})
        return
    print(f"{target}: {_size(size)}, {_counts(written)}")


def bring(source: str, config: str | None, dir: str | None, trust: bool, as_json: bool) -> None:
    """Take what fits from such a file."""
    cache = open_cache(config, dir)
    with _source(source) as (file, no_code_because), _bar("importing") as show:
        reason = "" if trust and "://" in source else no_code_because
        brought = read_archive(file, cache.database, cache.store, cache.machine, no_code_because=reason, show=show)
    if as_json:
        refused = [asdict(refusal) for refusal in brought.refused]
        print_json({"taken": dict(brought.taken), "kept": dict(brought.kept), "refused": refused})
    else:
        _print_brought(brought)


def open_cache(config: str | None, dir: str | None) -> Cache:
    """The cache of a configuration, or in a folder.

    Raises:
        StorageError: the folder that is named does not exist, or cannot be trusted.
    """
    loaded = load_config(config)
    if dir is not None:
        loaded = loaded.with_options({"cache.dir": dir})
    named = loaded.cache.dir
    if named is not None and not Path(named).expanduser().is_dir():
        raise StorageError(f"cache folder {named} does not exist", hint="look at cache.dir, or at --dir")
    with quiet_stdout():
        infos = registry.backends()
    fingerprints = {item.name: item.fingerprint for item in infos if item.available}
    folder = private_folder(named)
    # Opened without the remote level: what is printed, cleared and carried is what lies here.
    return Cache(
        folder,
        Database.open(folder),
        ArtifactStore.open(folder, max_gb=loaded.cache.max_gb),
        ThisMachine(fingerprints, devices_here()),
        loaded,
    )


def _versions() -> dict[str, str]:
    return {"mixbackend": mixbackend.__version__, "torch": torch.__version__, "python": platform.python_version()}


# --- files and URLs --------------------------------------------------------------------------------------------------


@contextmanager
def _destination(target: str) -> Iterator[IO[bytes]]:
    """A file that appears at its place when it is complete."""
    if "://" in target:
        system, place = _system(target)
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            _upload(file, system, place)
        return
    try:
        with replacing(Path(target)) as file:
            yield file
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error}", hint="name a file in a folder of yours") from error


def _upload(file: IO[bytes], system: AbstractFileSystem, place: str) -> None:
    temporary = f"{place}.writing-{secrets.token_hex(8)}"
    with system.open(temporary, "wb") as remote:
        while piece := file.read(1 << 22):
            remote.write(piece)
    system.mv(temporary, place)


@contextmanager
def _source(source: str) -> Iterator[tuple[IO[bytes], str]]:
    """A file to read, and why native code in it is not taken."""
    if "://" not in source:
        try:
            file = open(source, "rb")  # noqa: SIM115
        except OSError as error:
            raise StorageError(f"{source} cannot be read: {error}", hint="name a file of `cache export`") from error
        with file:
            problem = untrusted(os.fstat(file.fileno()))
            yield file, f"may hold native code, and the archive {problem}" if problem else ""
        return
    system, place = _system(source)
    with tempfile.TemporaryFile() as copy:
        with system.open(place, "rb") as remote:
            while piece := remote.read(1 << 22):
                copy.write(piece)
        copy.seek(0)
        yield copy, "may hold native code, and the writers of a URL are unknown (--trust takes your word)"


def _system(url: str) -> tuple[AbstractFileSystem, str]:
    try:
        system, place = url_to_fs(url)
        return system, place
    except (ValueError, ImportError, OSError) as error:
        raise StorageError(f"{url} cannot be used: {error}", hint="install the fsspec plug-in of its kind") from error


# --- printing --------------------------------------------------------------------------------------------------------


@contextmanager
def _bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, where that is a terminal."""
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _print_inventory(found: Inventory) -> None:
    screen = console()
    count, size = sum(item.count for item in found.artifacts), sum(item.bytes for item in found.artifacts)
    screen.print(f"cache folder {found.folder}, remote {found.remote or 'none'}")
    screen.print(f"artifacts: {count}, {_size(size)} of {_size(found.artifact_limit)}")
    if found.artifacts:
        rows = [(item.backend or "?", item.count, _size(item.bytes), item.stale) for item in found.artifacts]
        screen.print(as_table(("backend", "artifacts", "size", "out of date"), rows))
    aside = f", set aside: {', '.join(found.set_aside)}" if found.set_aside else ""
    screen.print(f"database: {_size(found.database_bytes)} of {_size(found.database_limit)}{aside}")
    table = [(row.table, row.count, row.stale, row.elsewhere) for row in found.rows]
    screen.print(as_table(("table", "rows", "out of date", "other devices"), table))
    if found.quarantines:
        quarantined = [(item.backend, item.region[:12], item.reason, item.expired) for item in found.quarantines]
        screen.print(as_table(("quarantined", "region", "reason", "over because"), quarantined))
    folders = [(item.what, item.path, item.files, _size(item.bytes)) for item in found.folders if item.files]
    if folders:
        screen.print(as_table(("beside it", "folder", "files", "size"), folders))


def _print_brought(brought: Brought) -> None:
    print(f"taken: {_counts(brought.taken)}; here already: {_counts(brought.kept)}; refused: {len(brought.refused)}")
    if not brought.refused:
        return
    rows = [(refusal.what, refusal.why) for refusal in brought.refused[:_MOST_REASONS]]
    more = len(brought.refused) - len(rows)
    console().print(as_table(("refused", "why"), [*rows, *([(f"{more} more", "--json lists them")] if more else [])]))


def as_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Rows under headings, as all commands of the cache print them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row))
    return table


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()) if count) or "nothing"


def _size(amount: float) -> str:
    for unit in ("B", "kB", "MB"):
        if amount < 1000.0:
            return f"{amount:.3g} {unit}"
        amount /= 1000.0
    return f"{amount:.3g} GB"
