"""``mixbackend bench decode``: steps of generation, beside eager, inductor, and on processors OpenVINO and llama.cpp.

Output: a table, or with ``--json`` one value; progress, and a line for each row, go to standard error.
Exit status: 0 if the mixture's steps ran and its first token is eager's, else 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from mixbackend.benchmarks.commands.progress import chosen
from mixbackend.benchmarks.decode.request import COPY, PEERS, PRECISIONS, SHAPES, DecodeRequest
from mixbackend.benchmarks.decode.turns import time_peers
from mixbackend.commands.output import console, print_json, quiet_stdout


def main(arguments: Sequence[str]) -> int:
    """Time the peers; the exit status."""
    parser = _parser()
    given = parser.parse_args(list(arguments))
    try:
        peers = chosen(given.peers, PEERS[given.device], "peer")
        precisions = chosen(given.precisions, PRECISIONS, "precision")
    except ValueError as error:
        parser.error(str(error))
    lines: list[dict[str, Any]] = []
    with quiet_stdout():
        for precision in (known for known in PRECISIONS if known in precisions):
            requests = [
                DecodeRequest(
                    peer,
                    given.shape,
                    precision,
                    given.context,
                    given.capacity,
                    given.tokens,
                    _threads(given.threads),
                    given.settle,
                    given.device,
                    given.batch,
                    given.prefill,
                )
                for peer in peers
            ]
            records = time_peers(
                requests,
                given.rounds,
                given.seconds,
                given.limit_s,
                lambda text, precision=precision: print(f"{precision}: {text}", file=sys.stderr, flush=True),  # type: ignore[misc]
            )
            found = _compared(records)
            # A long run that is ended keeps what it found.
            for line in found:
                print(json.dumps(line), file=sys.stderr, flush=True)
            lines += found
    if given.json:
        asked = {name: getattr(given, name) for name in ("shape", "context", "device", "batch", "prefill")}
        print_json({**asked, "rows": lines})
    else:
        what = "prefill" if given.prefill else "steps"
        title = f"{what}: {given.shape} weights, {given.batch} x {given.context} tokens in a cache of {given.capacity}"
        console().print(_table(lines, title))
    return int(any(line["peer"].startswith("mixture") and not _right(line) for line in lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mixbackend bench decode", description=__doc__)
    add = parser.add_argument
    add("--shape", choices=list(SHAPES), default="0.3b", help="of the model, by its weights (default: 0.3b)")
    add("--precisions", default="", metavar="A,B", help=f"of {', '.join(PRECISIONS)} (default: all)")
    add("--device", choices=list(PEERS), default="cpu", help="that steps run on (default: cpu)")
    peers = "; ".join(f"{device}: {', '.join(names)}" for device, names in PEERS.items())
    add("--peers", default="", metavar="A,B", help=f"{peers} (default: all)")
    add("--batch", type=int, default=1, metavar="N", help="sequences (default: 1; more with torch's peers alone)")
    add("--prefill", action="store_true", help="time the prompt instead of the tokens that follow it")
    add("--context", type=int, default=512, metavar="N", help="tokens of the prompt")
    add("--capacity", type=int, default=1024, metavar="N", help="tokens that the cache can hold")
    add("--tokens", type=int, default=16, metavar="N", help="after the prompt, compared with eager's")
    add("--threads", type=int, default=0, metavar="N", help="of every peer (default: torch's)")
    add("--rounds", type=int, default=7, metavar="N", help="turns of each peer")
    add("--seconds", type=float, default=1.0, metavar="S", help="of a turn")
    add("--settle", type=float, default=120.0, metavar="S", help="for the mixture to settle")
    add("--limit-s", type=float, default=600.0, metavar="S", help="for a peer to get ready")
    add("--json", action="store_true", help="print one JSON value")
    return parser


def _threads(wanted: int) -> int:
    import torch

    return wanted or torch.get_num_threads()


def _compared(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of one precision, with what they are beside eager, the mixture and a copy."""
    by_peer = {record["peer"]: record for record in records}
    right = by_peer.get("eager", {}).get("tokens")
    ours = min((item["step_ms"] for name, item in by_peer.items() if _is_timed_mixture(name, item)), default=None)
    copied = by_peer.get(COPY, {}).get("gb_per_s")
    lines = []
    for record in records:
        tokens, timed = record.pop("tokens", None), record.get("step_ms")
        if right and tokens and record["peer"] != COPY:
            record["agreeing"] = _agreeing(tokens, right)
        if timed and record["peer"] != COPY:
            record["of_mixture"] = timed / ours if ours else None
            record["of_copy"] = record["gb_per_s"] / copied if copied else None
        lines.append(record)
    return lines


def _is_timed_mixture(peer: str, record: Mapping[str, Any]) -> bool:
    return peer.startswith("mixture") and "step_ms" in record


def _agreeing(mine: Sequence[int], right: Sequence[int]) -> int:
    return next((place for place, pair in enumerate(zip(mine, right, strict=True)) if pair[0] != pair[1]), len(mine))


def _right(line: Mapping[str, Any]) -> bool:
    return bool(line.get("step_ms")) and line.get("agreeing", 1) > 0


def _table(lines: Sequence[Mapping[str, Any]], title: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    headings = "precision peer step_ms of_mixture gb_per_s of_copy agreeing first_step_s settled_s".split()
    for heading in headings:
        table.add_column(heading.replace("_", " "), justify="left" if heading in ("precision", "peer") else "right")
    for line in lines:
        if line["status"] != "pass":
            table.add_row(line["precision"], line["peer"], line["status"], line.get("detail", "")[-60:])
        else:
            table.add_row(*(_cell(line.get(heading)) for heading in headings))
    return table


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
