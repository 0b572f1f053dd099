"""``python -m mixbackend.benchmarks.golden``: record what is generated, planned and reported, or compare with a record.

Input: a folder. Output: one text file per graph and ``package.txt``, or a unified diff per file.
Invariants: every batch of graphs runs in a process of its own with fixed threads and an empty cache, in a fixed order.
The record holds for one machine and one environment: compiler, vector width and backends that are installed.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mixbackend.backends.common.python_process import module_command
from mixbackend.benchmarks.golden.masks import ENDED_WITHOUT_TEXT

BATCHES = 6
"""Processes that a record takes; each runs its graphs one after the other."""

THREADS = 2
"""Of torch in every process: they decide what is planned."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or compare; 1 if something differs or a graph could not be run."""
    options = _options(arguments)
    if options.work is not None:
        from mixbackend.benchmarks.golden.worker import work

        work(options.names, Path(options.work))
        return 0
    if options.record is not None:
        folder = Path(options.record)
        folder.mkdir(parents=True, exist_ok=True)
        failed = record(folder, options.names, options.jobs)
        print(f"{len(list(folder.glob('*.txt')))} files in {folder}; not run: {', '.join(failed) or 'none'}")
        return int(bool(failed))
    with tempfile.TemporaryDirectory(prefix="mixbackend-golden-") as again:
        failed = record(Path(again), options.names, options.jobs)
        differing = compare(Path(options.compare), Path(again), whole=not options.names)
    print(f"{len(differing)} files differ: {', '.join(differing) or 'none'}; not run: {', '.join(failed) or 'none'}")
    return int(bool(differing or failed))


def record(folder: Path, names: Sequence[str], jobs: int) -> list[str]:
    """Write the texts of these graphs, of all if there are none; names of those that could not be run."""
    from mixbackend.benchmarks.golden.graphs import GRAPHS

    wanted = [name for name in GRAPHS if name in names or not names]
    for name in (*wanted, "package"):
        (folder / f"{name}.txt").unlink(missing_ok=True)
    # By the whole table, so that a graph has the same predecessors whenever all are recorded.
    batches = [[name for name in list(GRAPHS)[start::BATCHES] if name in wanted] for start in range(BATCHES)]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda batch: _run(batch, folder), [*filter(None, batches), *([] if names else [["package"]])]))
    made = (*wanted, *(() if names else ("package",)))
    return [name for name in made if not _is_whole(folder / f"{name}.txt")]


def compare(before: Path, after: Path, whole: bool) -> list[str]:
    """Print a diff for every file that differs; their names. With ``whole``, files that are missing differ, too."""
    names = {path.name for path in after.glob("*.txt")}
    names |= {path.name for path in before.glob("*.txt")} if whole else set()
    differing = []
    for name in sorted(names):
        old, new = (_lines(folder / name) for folder in (before, after))
        if old != new:
            differing.append(name)
            sys.stdout.writelines(difflib.unified_diff(old, new, f"before/{name}", f"after/{name}"))
    return differing


def _run(batch: Sequence[str], folder: Path) -> None:
    """Run some graphs in a process of its own; what it prints is shown if it fails."""
    with tempfile.TemporaryDirectory(prefix="mixbackend-golden-") as home:
        command = module_command("mixbackend.benchmarks.golden", "--work", str(folder), *batch)
        answer = subprocess.run(command, env=_environment(os.environ, home), capture_output=True, text=True, cwd=home)
    print(answer.stdout, end="", file=sys.stderr, flush=True)
    if answer.returncode != 0:
        print(f"{' '.join(batch)}: exit status {answer.returncode}\n{answer.stderr[-4000:]}", file=sys.stderr)


def _environment(given: Mapping[str, str], home: str) -> dict[str, str]:
    """Of a process that has nothing from before and measures nothing."""
    kept = {key: value for key, value in given.items() if not key.startswith(("MIXBACKEND_", "TORCH", "PYTHONHASH"))}
    return kept | {
        "MIXBACKEND_CALIBRATE": "0",
        "XDG_CACHE_HOME": home,
        "TORCHINDUCTOR_CACHE_DIR": f"{home}/inductor",
        "TMPDIR": home,
        "OMP_NUM_THREADS": str(THREADS),
    }


def _is_whole(path: Path) -> bool:
    return path.exists() and ENDED_WITHOUT_TEXT not in path.read_text(encoding="utf-8")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mixbackend.benchmarks.golden", description=__doc__)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--record", metavar="FOLDER", help="write the record")
    task.add_argument("--compare", metavar="FOLDER", help="run again and print what differs from this record")
    task.add_argument("--work", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("names", nargs="*", help="graphs; all of them unless given")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
