"""``mixbackend bench headline``: the suite's models on a GPU against inductor and eager, in pieces of minutes.

Output: a line per case on standard error while it runs; then, or with ``--summary`` alone, what the file holds: with
``--json`` as one value, with ``--page`` and ``--plot`` as a page and a picture.
Exit status: 0 if every case of this run was timed, and no way of ours is wrong in it, else 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mixbackend.benchmarks.commands.progress import chosen
from mixbackend.benchmarks.gpu import visible_gpus
from mixbackend.benchmarks.headline.cases import SETS, cases
from mixbackend.benchmarks.headline.page import page
from mixbackend.benchmarks.headline.run import Settings, records, run
from mixbackend.benchmarks.headline.summary import OURS, line_of, summarise
from mixbackend.benchmarks.models.registry import find
from mixbackend.benchmarks.row_records import Part
from mixbackend.commands.output import console, print_json

_COMMAND = "mixbackend bench headline --sets {sets} --minutes 8 --output {name}    # again until nothing is missing"


def main(arguments: Sequence[str]) -> int:
    """Run what is missing, and show what there is; the exit status."""
    parser = _parser()
    given = parser.parse_args(list(arguments))
    try:
        sets = chosen(given.sets, tuple(SETS), "set")
        names = [find(name).name for name in given.models.split(",") if name]
    except (ValueError, KeyError) as error:
        parser.error(str(error.args[0]))
    new: list[Part] = []
    if not given.summary:
        gpus = visible_gpus() if given.device == "cuda" else ("",)
        settings = Settings(
            given.output,
            given.device,
            tuple(gpu for _ in range(given.jobs) for gpu in gpus),
            minutes=given.minutes,
            case_s=given.timeout,
            calibration_s=given.calibration,
            turns=given.turns,
            settle_s=given.settle,
            again=given.retry_failed,
        )
        new = run(cases(sets, names), settings, lambda text: print(text, file=sys.stderr, flush=True))
    known = [record for record in records(given.output).values() if line_of(record).group in sets]
    picture = os.path.relpath(given.plot, given.page.parent) if given.page and given.plot else ""
    text = page(known, _COMMAND.format(sets=",".join(sets), name=given.output.name), picture)
    if given.page:
        given.page.write_text(text, encoding="utf-8")
    if given.plot:
        # Machines with GPUs have seldom what draws.
        from mixbackend.benchmarks.headline.plots import plot

        plot(known, given.plot)
    if given.json:
        print_json(summarise(known))
    else:
        console().print(text, markup=False)
    return int(any("failed" in record or any(way in line_of(record).wrong for way in OURS) for record in new))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mixbackend bench headline", description=__doc__)
    add = parser.add_argument
    add("--sets", default="", metavar="A,B", help=f"of {', '.join(SETS)} (default: all)")
    add("--models", default="", metavar="A,B", help="of the suite (default: all)")
    add("--output", type=Path, default=Path("results/headline.jsonl"), metavar="FILE", help="results so far, to come")
    add("--minutes", type=float, default=8.0, metavar="M", help="no case is begun that cannot end by then")
    add("--jobs", type=int, default=2, metavar="N", help="cases that compile at once on each GPU")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="where models run")
    add("--timeout", type=float, default=300.0, metavar="S", help="seconds for a case to compile and be judged")
    add("--settle", type=float, default=60.0, metavar="S", help="longest time until ours try no other plans")
    add("--turns", type=int, default=12, metavar="N", help="samples of each way")
    add("--calibration", type=float, default=60.0, metavar="S", help="seconds for rates not known yet")
    add("--retry-failed", action="store_true", help="run cases again that failed")
    add("--summary", action="store_true", help="show what the file holds, and run nothing")
    add("--page", type=Path, metavar="FILE", help="write the table as Markdown")
    add("--plot", type=Path, metavar="FILE", help="write the picture as SVG")
    add("--json", action="store_true", help="print one JSON value")
    return parser
