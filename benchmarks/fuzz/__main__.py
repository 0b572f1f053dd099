"""``python -m mixbackend.benchmarks.fuzz``: random programs, held against eager (docs/how-to/fuzzing.md)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mixbackend.benchmarks.fuzz.campaign import FINDINGS, Campaign, Row, Task, key_of
from mixbackend.benchmarks.fuzz.settings import SETTINGS
from mixbackend.benchmarks.fuzz.summary import summarise, text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 1 if something was found that is ours."""
    options = _options(arguments)
    settings = options.settings.split(",")
    tasks = [
        Task(seed, setting, options.shrink, options.longest)
        for seed in range(options.first, options.first + options.programs)
        for setting in (settings if options.of_each else [settings[seed % len(settings)]])
    ]
    wanted = {task.key for task in tasks}
    keep = Path(options.keep) if options.keep else None
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)

    def tell(row: Row) -> None:
        if keep is not None and "script" in row:
            (keep / f"seed_{row['seed']}_{row['setting']}.py").write_text(row["script"], encoding="utf-8")
        if not options.json and row["status"] in FINDINGS:
            print(f"seed {row['seed']} {row['setting']}: {row['status']}", file=sys.stderr, flush=True)

    path = Path(options.results) if options.results else None
    campaign = Campaign(tasks, path, options.jobs, options.timeout, options.per_worker, options.end, tell)
    rows = [row for row in campaign.run() if key_of(row) in wanted]
    summary = summarise(rows) | {"wanted": len(tasks)}
    print(json.dumps(summary) if options.json else f"{text(summary)}\n{len(rows)} of {len(tasks)} are done")
    return int(bool(summary["found"]))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mixbackend.benchmarks.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--longest", type=int, default=Task.longest, help="lines of a program at most")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="in turn over the seeds, see --of-each")
    parser.add_argument("--of-each", action="store_true", help="every seed in every setting")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes, of one thread each")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds of one program")
    parser.add_argument("--end", type=float, default=float("inf"), help="seconds after which no program is begun")
    parser.add_argument("--per-worker", type=int, default=60, help="programs that a process serves")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds to make a failing program small, 0 for not")
    parser.add_argument("--results", help="file of JSON lines; what is in it is not run again")
    parser.add_argument("--keep", help="folder for scripts of what fails")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
