"""Packages beside torch.compile with filled caches, AOTInductor and ONNX Runtime: seconds to a first result, and sizes.

Place: above ``worker``; run by ``.ci/packages``. Input: models. Output: a table, and a line of JSON for each process.
Method: each peer makes its files in a process of its own (torch.compile is started once to fill its caches). Then peers
take turns: in every round each starts a fresh process; figures are medians over the rounds. The clock starts before the
process is started and ends with its first result. Packages are loaded where no compiler can be found.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mixbackend.backends.common.python_process import module_command
from mixbackend.benchmarks.packages.cases import CASES, Case, case_of
from mixbackend.benchmarks.packages.worker import PEERS

_WORKER = "mixbackend.benchmarks.packages.worker"
_LONGEST_S = 900.0
_TAIL_CHARACTERS = 300
_ROW = "| {model} | {kind} | {backends} | {bytes:.0f} | {error:.2f} | {cells} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(case.model for case in CASES), help="with commas between")
    parser.add_argument("--peers", default=",".join(PEERS), help="with commas between")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="keep the files here; what is there is not made again")
    parser.add_argument("--make", action="store_true", help="only make the files")
    wanted = parser.parse_args(arguments)
    peers = wanted.peers.split(",")
    with tempfile.TemporaryDirectory(prefix="packages-") as temporary:
        home = Path(wanted.folder or temporary)
        cases = [case_of(model) for model in wanted.models.split(",")]
        made = {case.model: _make(case, peers, home) for case in cases}
        if wanted.make:
            return 0
        print(f"| model | kind | backends | MB | error | {' | '.join(peers)} |")
        print(f"|---|---|---|---|---|{'---|' * len(peers)}")
        for case in cases:
            print(_row(case, peers, made[case.model], _started(case, peers, home, wanted.rounds)), flush=True)
    return 0


def _make(case: Case, peers: Sequence[str], home: Path) -> dict[str, Any]:
    folder = home / case.model
    folder.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {}
    for peer in peers:
        known = folder / f"{peer}.json"
        if not known.exists():
            answer = _process("make" if peer != "torch.compile" else "start", peer, case, folder)
            known.write_text(json.dumps(answer))
            print(f"{case.model} {peer}: {json.dumps(answer)}", file=sys.stderr, flush=True)
        told[peer] = json.loads(known.read_text())
    return told


def _started(case: Case, peers: Sequence[str], home: Path, rounds: int) -> dict[str, list[dict[str, Any]]]:
    told: dict[str, list[dict[str, Any]]] = {peer: [] for peer in peers}
    for number in range(rounds):
        for peer in [*peers[number % len(peers) :], *peers[: number % len(peers)]]:
            answer = _process("start", peer, case, home / case.model)
            told[peer].append(answer)
            print(f"{case.model} {peer}: {json.dumps(answer)}", file=sys.stderr, flush=True)
    return told


def _process(action: str, peer: str, case: Case, folder: Path) -> dict[str, Any]:
    """What a process says, with the seconds until its first result."""
    caches = folder / f"caches-{peer}"
    caches.mkdir(mode=0o700, exist_ok=True)
    env = {**os.environ, "XDG_CACHE_HOME": str(caches), "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor")}
    if (action, peer) == ("start", "mixbackend"):
        env["PATH"] = ""  # there is no compiler where it is loaded
        env.pop("CXX", None)
    begin = time.time()
    command = [*module_command(_WORKER), action, peer, case.model, str(folder)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, env=env, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        return {"problem": f"took more than {_LONGEST_S:.0f} s"}
    if answer.returncode != 0:
        return {"problem": answer.stderr.strip()[-_TAIL_CHARACTERS:]}
    told: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return {**told, "start_s": told["first_at"] - begin} if "first_at" in told else told


def _row(case: Case, peers: Sequence[str], made: dict[str, Any], started: dict[str, list[dict[str, Any]]]) -> str:
    own = made.get("mixbackend", {})
    errors = [item["error"] for item in started.get("mixbackend", ()) if "error" in item]
    return _ROW.format(
        model=case.model,
        kind=case.kind,
        backends=", ".join(own.get("backends", ())) or own.get("problem", "-"),
        bytes=own.get("bytes", 0) / 1e6,
        error=max(errors, default=float("nan")),
        cells=" | ".join(_cell(made.get(peer, {}), started[peer]) for peer in peers),
    )


def _cell(made: dict[str, Any], started: Sequence[dict[str, Any]]) -> str:
    """Seconds to the first result; those behind torch's import; milliseconds of later calls."""
    good = [item for item in started if "start_s" in item]
    if not good or "problem" in made:
        return "fails"
    whole, behind, later = (
        statistics.median(values)
        for values in (
            [item["start_s"] for item in good],
            [item["loaded_s"] + item["first_s"] for item in good],
            [item["later_s"] for item in good],
        )
    )
    return f"{whole:.1f} ({behind:.1f}), {1e3 * later:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
