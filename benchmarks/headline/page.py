"""The headline table as a page of Markdown, from stored records.

Place: beside ``plots``; ``bench headline --page`` writes what it gives. Input: records of one or more files.
Invariants: no figure is typed by hand; what is missing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mixbackend.benchmarks.headline.cases import SETS, cases
from mixbackend.benchmarks.headline.summary import INDUCTOR, OURS, Line, line_of, summarise
from mixbackend.benchmarks.row_records import Part

_TITLES = {
    "training-amp": "Training, AMP (bfloat16)",
    "training-float32": "Training, float32",
    "inference-float16": "Inference, float16",
    "inference-float32": "Inference, float32",
}
_SPEEDS = (
    ("inductor_over_eager", "inductor"),
    ("inductor_graphs_over_eager", "inductor, graphs"),
    ("ours_over_eager", "ours"),
    ("ours_graphs_over_eager", "ours, graphs"),
    ("ours_over_inductor", "ours over inductor"),
    ("ours_graphs_over_inductor_graphs", "with graphs"),
    ("ours_best_over_inductor_best", "best over best"),
)
_NOTES = """
Columns of speed are geometric means over eager, and of ours over inductor, of the cases in which every way was timed
and right. *Graphs* is `mode="reduce-overhead"`; *best* is the faster of a side's two modes, model by model. A step is
forward, in training with loss and backward, of the suite's models: the libraries' own classes, scaled down, so that
much of eager's time is launching; figures of true-size models are in [gpu.md](gpu.md). TF32 is off. Models compile side
by side and are timed one at a time, in turns, while all other processes stand still. Right is upstream's rule
([benchmarks](../../docs/reference/benchmarks.md#the-accuracy-rule)), in training mode.
""".strip()


def page(records: Iterable[Part], command: str, picture: str = "") -> str:
    """The page.

    Args:
        command: that made the records.
        picture: where ``plots`` drew them, as the page links to it.
    """
    kept = list(records)
    summary = summarise(kept)
    parts = [
        "# The headline table: the suite's models on a GPU",
        f"```\n{command}\n```",
        _origin(kept),
        *_weighted(summary),
        _speeds(summary["groups"]),
        f"![Speed over eager, model by model, sorted]({picture})" if picture else "",
        _NOTES,
        _settled(kept),
        "## By family",
        _families(summary["groups"]),
        "## Right results",
        _right(summary["groups"]),
        *_trouble(summary["groups"]),
        "## Below inductor by more than 3%",
        *_losses(summary["groups"]),
        "## First calls and memory",
        _first_calls(summary["groups"]),
        "## Model by model",
        *_models(map(line_of, kept)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _origin(records: Sequence[Part]) -> str:
    made = [record["made_on"] for record in records if "made_on" in record]
    names = ("mixbackend", "torch", "triton", "transformers", "timm")
    versions = ", ".join(f"{name} {' and '.join(found)}" for name in names if (found := _different(made, name)))
    devices = " and ".join(_different(made, "device"))
    dates = _different(made, "date")
    return f"- machine: {devices}\n- versions: {versions}\n- entered: {dates[0] if dates else ''}{_until(dates)}"


def _until(dates: Sequence[str]) -> str:
    return f", parts until {dates[-1]}" if len(dates) > 1 else ""


def _different(made: Iterable[Mapping[str, str]], key: str) -> list[str]:
    return sorted({facts[key] for facts in made if facts.get(key)})


def _settled(records: Sequence[Part]) -> str:
    """In how many cases ours was done trying, and what was timed in the others."""
    known = [record for record in records if "settled" in record]
    settled, stopped = (sum(bool(record.get(key)) for record in known) for key in ("settled", "stopped"))
    parts = []
    if settled < len(known):
        parts = [f"In {settled} of {len(known)} cases ours had settled by the time that it was given (`--settle`)"]
    if stopped:
        parts.append(f"in {stopped} it was stopped trying then, and what ran is what was timed")
    if parts and settled + stopped < len(known):
        others = "the others" if not stopped else str(len(known) - settled - stopped)
        parts.append(f"in {others} further plans were still compiled behind and tried while it was timed")
    said = ["; ".join(parts) + "."] if parts else []
    untried = sum(not any("challengers" in way for way in record["ways"].values()) for record in known)
    if untried:
        said.append(f"{untried} cases were timed by a version that could compile no other plan behind in this setting.")
    failed = sum(bool(way.get("challengers", {}).get("out")) for record in known for way in record["ways"].values())
    if failed:
        said.append(f"In {failed} compiled models a plan could not be tried, for it failed to build or to run.")
    return " ".join(said)


def _weighted(summary: Mapping[str, Any]) -> list[str]:
    found = summary["weighted_training"]
    if not all(found.values()):
        return []
    return [
        f"Training over eager, 0.75 AMP + 0.25 float32, best modes: **ours {found['ours_best']:.2f}**, "
        f"inductor {found['inductor_best']:.2f}."
    ]


def _speeds(groups: Mapping[str, Any]) -> str:
    rows = [
        [_TITLES[name], f"{group['compared']} of {len(cases([name]))}", *_cells(group)]
        for name, group in groups.items()
    ]
    return _table(["", "compared", *(title for _, title in _SPEEDS)], rows)


def _families(groups: Mapping[str, Any]) -> str:
    rows = [
        [_TITLES[name], family, str(speed["compared"]), *_cells(speed)]
        for name, group in groups.items()
        for family, speed in group["families"].items()
    ]
    return _table(["", "family", "compared", *(title for _, title in _SPEEDS)], rows)


def _cells(speed: Mapping[str, Any]) -> list[str]:
    return [f"{speed[key]:.2f}" if speed[key] else "" for key, _ in _SPEEDS]


def _right(groups: Mapping[str, Any]) -> str:
    rows = [
        [_TITLES[name], str(group["cases"]), str(group["judged"]), *(str(count) for count in group["right"].values())]
        for name, group in groups.items()
    ]
    return _table(["", "ran", "eager repeats itself", *INDUCTOR, *OURS], rows)


def _trouble(groups: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, group in groups.items():
        wrong = [f"- {model}: {_reasons(ways)}" for model, ways in sorted(group["wrong"].items())]
        silent = [f"{model} ({_short(why)})" for model, why in sorted(group["not_judged"].items())]
        if wrong:
            lines.append(f"{_TITLES[name]}, wrong or failed:\n\n" + "\n".join(wrong))
        if silent:
            lines.append(f"{_TITLES[name]}, nothing to hold results against: {'; '.join(silent)}.")
    return lines


def _reasons(ways: Mapping[str, str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for way, reason in ways.items():
        by_reason.setdefault(_short(reason), []).append(way)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())


def _short(reason: str) -> str:
    text = " ".join(reason.split()).replace("|", "/").replace("`", "'")
    return text if len(text) <= 110 else f"{text[:107]}..."


def _losses(groups: Mapping[str, Any]) -> list[str]:
    found = []
    for name, group in groups.items():
        for way, models in group["losses"].items():
            if models:
                listed = ", ".join(f"{model} {gain:.2f}" for model, gain in models.items())
                found.append(f"{_TITLES[name]}, {way}: {listed}.")
    return found or ["None."]


def _first_calls(groups: Mapping[str, Any]) -> str:
    rows = [
        [_TITLES[name], *(f"{group[key]:.2f}" if group[key] else "" for key in ("first_call_share", "memory_share"))]
        for name, group in groups.items()
    ]
    head = ["", "first call, ours over inductor's", "memory of a call, ours over inductor's, graphs"]
    return "Medians; every first call beside those of other models.\n\n" + _table(head, rows)


def _models(lines: Iterable[Line]) -> list[str]:
    shown = ("eager", *INDUCTOR, *OURS)
    by_group: dict[str, list[Line]] = {}
    for line in lines:
        by_group.setdefault(line.group, []).append(line)
    found = []
    for name in (name for name in SETS if name in by_group):
        rows = [
            [line.model, *(f"{line.ms[way]:.3f}" if way in line.ms else "" for way in shown), _gain(line)]
            for line in sorted(by_group[name], key=lambda line: line.model.lower())
            if line.ms
        ]
        found.append(f"{_TITLES[name]}, milliseconds:\n\n" + _table(["model", *shown, "best over best"], rows))
    return found


def _gain(line: Line) -> str:
    gain = line.gain(OURS, INDUCTOR)
    return f"{gain:.2f}" if gain else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
