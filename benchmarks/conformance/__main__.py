"""``python -m mixbackend.benchmarks.conformance PART``: the parts of conformance, and the page that tells of them.

``opinfo``: torch's operator samples, resumable. ``clients``, ``torchcts``: tests through pytest. ``page``: what
they found, as benchmarks/results/conformance.md. Exit status: 0 if nothing is wrong that the control has
right, 1 if something is.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main() -> int:
    """Run one part; the exit status."""
    # Calibrating takes a minute of each fresh cache and decides nothing that is checked here.
    os.environ.setdefault("MIXBACKEND_CALIBRATE", "0")
    given = _parser().parse_args()
    if given.part == "opinfo":
        return _opinfo(given)
    if given.part == "page":
        return _page(given)
    from mixbackend.benchmarks.conformance import suites

    return suites.run(given.part, given.folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mixbackend.benchmarks.conformance", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    opinfo = parts.add_parser("opinfo", help="torch's operator samples through default auto(), with gradients")
    opinfo.add_argument("--dtype", action="append", help="element type; may be repeated (float32)")
    opinfo.add_argument("--ops", nargs="+", default=[], help="only operators whose name has one of these words")
    opinfo.add_argument("--samples-per-op", type=int, default=0, help="of each operator at most (all)")
    opinfo.add_argument("--chunk", type=int, default=8, help="samples asked of a process at once")
    opinfo.add_argument("--jobs", type=int, default=1, help="processes side by side")
    opinfo.add_argument("--limit-s", type=float, default=float("inf"), help="begin nothing after so many seconds")
    opinfo.add_argument("--timeout-s", type=float, default=240.0, help="longest time of a few samples")
    opinfo.add_argument("--label", default="", help="what records are kept under (a digest of the sources)")
    opinfo.add_argument("--out", type=Path, required=True, help="file of results, read again to resume")
    for name, text in (("clients", "tests/clients"), ("torchcts", "TorchCTS's compiler suite"), ("page", "the page")):
        part = parts.add_parser(name, help=text)
        part.add_argument("--folder", type=Path, required=True, help="of results")
    page = parts.choices["page"]
    page.add_argument("--opinfo", type=Path, nargs="*", default=[], help="files of operator samples")
    page.add_argument("--out", type=Path, default=Path("benchmarks/results/conformance.md"))
    return parser


def _opinfo(given: argparse.Namespace) -> int:
    import random

    from mixbackend.benchmarks.conformance import operators
    from mixbackend.benchmarks.conformance.operator_worker import operators_for
    from mixbackend.benchmarks.conformance.tallies import tally_of
    from mixbackend.benchmarks.results import ResultFile, code_version

    label = given.label or code_version()
    names = [
        (name, dtype)
        for dtype in given.dtype or ["float32"]
        for name in operators_for(dtype)
        if not given.ops or any(word in name for word in given.ops)
    ]
    # Neighbours are of one family: in this order a run that ends early has seen something of each.
    random.Random(0).shuffle(names)
    options = operators.Options(given.jobs, given.chunk, given.samples_per_op, given.limit_s, given.timeout_s, label)
    file = ResultFile(given.out)
    done = operators.run(names, options, file, lambda line: print(line, file=sys.stderr))
    tallies = [tally_of(file.records(), label, dtype) for dtype in given.dtype or ["float32"]]
    print(*tallies, "complete" if done else "not complete: the same command goes on", sep="\n")
    return int(any(tally.ours for tally in tallies))


def _page(given: argparse.Namespace) -> int:
    from mixbackend.benchmarks.conformance.page import write_page

    return write_page(given.folder, given.opinfo, given.out)


if __name__ == "__main__":
    sys.exit(main())
