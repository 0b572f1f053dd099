"""Models that generate: tokens of ``generate()`` with dynamic and static caches, held against eager's.

Place: a command, ``python -m mixbackend.benchmarks.generators``; needs transformers. Models are those of
``models.generators``. ``benchmarks.generation`` is its neighbour for one large model on a GPU.
Input: names of models, caches, lengths of prompts. Output: a row for each model and cache, as text or JSON lines.
A row is right if its tokens equal eager's for as long as inductor's do (which runs only where ours differ), if its
scores are eager's, and if the backend is handed as many graphs as torch makes by itself: prompts of further lengths
cause none.
Invariants: each model runs in a process of its own, with caches of its own.
Non-goals: speed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mixbackend.backends.common.python_process import module_command
from mixbackend.benchmarks.generated import CACHES, Row, rows_of
from mixbackend.benchmarks.models.generators import GENERATORS, generator_named

PROMPTS = ((1, 16), (1, 100), (1, 700), (1, 2048), (3, 40))
"""Batch and length, in the order in which they come."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run models, print their rows; 1 if one is wrong."""
    chosen = _parser().parse_args(arguments)
    if chosen.one:
        generator = generator_named(chosen.one)
        for row in rows_of(generator, chosen.caches, chosen.prompts, chosen.tokens, chosen.way, chosen.device):
            print(json.dumps(row), flush=True)
        return 0
    names = chosen.models or [item.name for item in GENERATORS if not item.full_size]
    failed = 0
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for rows in pool.map(lambda name: _judged(name, chosen), names):
            for row in rows:
                failed += bool(row["problems"])
                print(json.dumps(row) if chosen.json else _line(row), flush=True)
    print(f"{len(names)} models, {failed} rows wrong", file=sys.stderr)
    return int(failed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", metavar="NAME", choices=[item.name for item in GENERATORS])
    parser.add_argument("--device", default="cpu", help="that models run on (default: cpu)")
    parser.add_argument("--caches", nargs="+", choices=CACHES, default=list(CACHES))
    parser.add_argument("--prompts", nargs="+", type=_prompt, default=list(PROMPTS), metavar="BATCHxLENGTH")
    parser.add_argument("--tokens", type=int, default=12, help="length of an answer")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--limit-s", type=float, default=900, help="seconds for each model")
    parser.add_argument("--json", action="store_true", help="a JSON object per row")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--way", default="mixbackend", help=argparse.SUPPRESS)
    return parser


def _prompt(text: str) -> tuple[int, int]:
    batch, _, length = text.partition("x")
    return int(batch), int(length)


def _judged(name: str, chosen: argparse.Namespace) -> list[Row]:
    """The rows of a model; where tokens differ, inductor is asked whether it does better."""
    rows = _apart(name, "mixbackend", chosen.caches, chosen)
    for row in rows:
        if row["problems"] or row["agreeing"] == row["tokens"]:
            continue
        (peer,) = _apart(name, "inductor", [row["cache"]], chosen)
        row["inductor"] = peer["agreeing"]
        if not peer["agreeing"] or any(mine < its for mine, its in zip(row["agreeing"], peer["agreeing"], strict=True)):
            row["problems"] = ["tokens differ from eager's before inductor's do"]
    return rows


def _apart(name: str, way: str, caches: Sequence[str], chosen: argparse.Namespace) -> list[Row]:
    """One model in a process of its own."""
    command = module_command("mixbackend.benchmarks.generators", "--one", name, "--way", way, "--caches", *caches)
    command += ["--device", chosen.device, "--tokens", str(chosen.tokens)]
    command += ["--prompts", *(f"{batch}x{length}" for batch, length in chosen.prompts)]
    error = ""
    with tempfile.TemporaryDirectory() as folder:
        own = {key: str(Path(folder) / key) for key in ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR")}
        for path in own.values():
            Path(path).mkdir(mode=0o700)
        environment = {"MIXBACKEND_CALIBRATE": "0", **os.environ, **own}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=chosen.limit_s, check=False
            )
            told = done.stdout
            if done.returncode:
                error = f"ended with {done.returncode}: " + "\n".join(done.stderr.strip().splitlines()[-8:])
        except subprocess.TimeoutExpired as late:
            told = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            error = f"not done after {chosen.limit_s:.0f} s"
    rows: list[Row] = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    missing = caches[len(rows) :]
    return rows + [_broken(name, cache, way, error) for cache in missing]


def _broken(name: str, cache: str, way: str, error: str) -> Row:
    return Row(model=name, cache=cache, way=way, tokens=[], agreeing=[], scores_off=0.0, graphs=[], expected_graphs=[],
               regions={}, events=[], seconds=0.0, problems=[error or "no row was told"], inductor=[])  # fmt: skip


def _line(row: Any) -> str:
    verdict = "; ".join(row["problems"]) or "right"
    agreeing = " ".join(f"{mine}/{all_of}" for mine, all_of in zip(row["agreeing"], row["tokens"], strict=True))
    counts = ", ".join(f"{name} {count}" for name, count in row["regions"].items())
    return (
        f"{row['model']:12} {row['cache']:8} {verdict}: tokens {agreeing}, scores off by {row['scores_off']:.0e}, "
        f"graphs {row['graphs']}, regions {counts}, {row['seconds']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
