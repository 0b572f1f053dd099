"""The comparison with peers as tables for people.

Place: the end of ``mixbackend bench peers``. Input: what ``summary.summarise`` made. Pure but for printing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mixbackend.benchmarks.peers.catalogue import MIXTURE, MIXTURES
from mixbackend.benchmarks.peers.request import OWN_BATCH

Case = Mapping[str, Any]

_SHOWN_REGIONS = 4


def print_peers(value: Mapping[str, Any], console: Console) -> None:
    """Per phase and dtype: times, first calls, parts with limits; then means, goals and problems."""
    for title, summary in value["summary"].items():
        cases = [case for case in value["cases"] if f"{case['phase']} {case['dtype']}" == title]
        console.print(_times(title, cases))
        console.print(_ratios(title, cases))
        if summary["singles"]:
            console.print(_singles(title, cases))
        console.print(_first_calls(title, cases))
        console.print(_parts(title, cases))
        _print_summary(title, summary, console)


def _times(title: str, cases: Sequence[Case]) -> Table:
    peers = list(dict.fromkeys(name for case in cases for name in case["peers"]))
    table = _table(
        f"{title}: milliseconds, median of the rounds, half the quartile distance", ["model", "batch", *peers]
    )
    for case in cases:
        table.add_row(case["model"], _batch(case), *(_time(case, name) for name in peers))
    return table


def _time(case: Case, name: str) -> str:
    peer = case["peers"].get(name)
    if peer is None:
        return "-"
    if peer["median_s"] is None:
        return str(peer["status"])
    spread = "" if peer["spread"] is None else f" ±{peer['spread']:.0%}"
    marks = " wrong" if peer["status"] == "wrong" else " *" if case["winner"] == name else ""
    return f"{peer['median_s'] * 1e3:.3g}{spread}{marks}"


def _ratios(title: str, cases: Sequence[Case]) -> Table:
    mixtures = [name for name in MIXTURES if any(name in case["over"] for case in cases)]
    columns = [f"{name} over {against}" for name in mixtures for against in ("best rival", "best inductor")]
    table = _table(f"{title}: times faster", ["model", "batch", "best rival", *columns, "others' cores"])
    for case in cases:
        ratios = [case["over"].get(name, {}).get(key) for name in mixtures for key in ("rivals", "inductor")]
        others = [peer["cores_of_others"] for peer in case["peers"].values() if peer["cores_of_others"] is not None]
        busy = f"{max(others):.2f}" if others else "-"
        table.add_row(case["model"], _batch(case), case["best_rival"] or "-", *map(_ratio, ratios), busy)
    return table


def _singles(title: str, cases: Sequence[Case]) -> Table:
    mixtures = list(dict.fromkeys(name for case in cases for name in case["over_singles"]))
    table = _table(
        f"{title}: times faster than the best of eager and the single backends, ± two standard errors",
        ["model", "batch", *(column for name in mixtures for column in (name, "best single", "verdict"))],
    )
    for case in cases:
        rows = (case["over_singles"].get(name) for name in mixtures)
        table.add_row(case["model"], _batch(case), *(cell for row in rows for cell in _single(row)))
    return table


def _single(row: Mapping[str, Any] | None) -> tuple[str, str, str]:
    if row is None:
        return "-", "-", "-"
    noise = "?" if row["noise"] is None else f"{row['noise']:.1%}"
    slower = "slower" if row["slower_beyond_noise"] else "not slower"
    verdict = "beyond the limit" if row["slower_beyond_limit"] else "too noisy" if row["too_noisy"] else slower
    same = ", same placement" if row["same_placement"] else ""
    return f"{row['ratio']:.3f} ±{noise}", str(row["best_single"]), verdict + same


def _batch(case: Case) -> str:
    return "own" if case["batch"] == OWN_BATCH else str(case["batch"])


def _ratio(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}..{ratio['high']:.2f})" + (
        " apart" if ratio["runs_apart"] else ""
    )


def _first_calls(title: str, cases: Sequence[Case]) -> Table:
    peers = list(dict.fromkeys(name for case in cases for name in case["peers"]))
    table = _table(f"{title}: seconds of the first call; w: from warm caches", ["model", "batch", *peers])
    for case in cases:
        cells = [_first_call(case["peers"].get(name)) for name in peers]
        table.add_row(case["model"], _batch(case), *cells)
    return table


def _first_call(peer: Mapping[str, Any] | None) -> str:
    if peer is None or peer["first_call_s"] is None:
        return "-"
    return f"{peer['first_call_s']:.2f}" + (" w" if peer["first_call_warm"] else "")


def _parts(title: str, cases: Sequence[Case]) -> Table:
    columns = [
        "model",
        "batch",
        "GFLOP",
        "compute ms",
        "memory ms",
        "reached",
        "by backend",
        "beyond",
        "slowest regions",
    ]
    table = _table(f"{title}: limits of the machine, share of them that the mixture reaches, and its parts", columns)
    for case in cases:
        parts = case["parts"].get(MIXTURE, {})
        shares = ", ".join(f"{name} {_share(facts)}" for name, facts in parts.get("backends", {}).items())
        slowest = "; ".join(map(_region, parts.get("profile", [])[:_SHOWN_REGIONS]))
        beyond = parts.get("beyond_regions_s")
        rest = "-" if beyond is None else f"{beyond * 1e3:.3g} ms"
        table.add_row(case["model"], _batch(case), *_limits(case), shares or "-", rest, slowest or "-")
    return table


def _share(facts: Mapping[str, Any]) -> str:
    return f"{facts['nodes']} nodes {facts['measured_s'] * 1e3:.3g} ms"


def _limits(case: Case) -> list[str]:
    limits = case["limits"]
    if limits is None:
        return ["-"] * 4
    reached = case["peers"].get(MIXTURE, {}).get("share_of_limit")
    return [
        f"{limits['flops'] / 1e9:.3g}",
        f"{limits['compute_s'] * 1e3:.3g}",
        f"{limits['bandwidth_s'] * 1e3:.3g}",
        "-" if reached is None else f"{reached:.0%}",
    ]


def _region(region: Mapping[str, Any]) -> str:
    return f"{region['backend']} {region['measured_s'] * 1e3:.3g} ms ({region['ops']})"


def _print_summary(title: str, summary: Mapping[str, Any], console: Console) -> None:
    for name, figures in summary["geometric_means"].items():
        for against, figure in figures.items():
            best = "eager" if against == "eager" else f"the best of {against}"
            console.print(
                f"{title}: {name} over {best}: {figure['geometric_mean']:.3f}, geometric mean of {figure['cases']}; "
                f"least {figure['least']:.3f} ({figure['least_at']})"
            )
    for goal in summary["goals"]:
        console.print(f"{title}: {_goal(goal)}")
    for name, figures in summary["singles"].items():
        print_singles(f"{title}: {name}", figures, console)
    console.print(f"{title}: winners: " + ", ".join(f"{name} {count}" for name, count in summary["wins"].items()))
    for problem in summary["problems"]:
        detail = problem["detail"].replace("\n", " ")[:300]
        batch = "" if problem["batch"] == OWN_BATCH else f" batch {problem['batch']}"
        console.print(f"{problem['model']}{batch}, {problem['peer']}: {problem['status']}: {detail}")


def print_singles(title: str, figures: Mapping[str, Any], console: Console) -> None:
    """A mixture against the single backends, in lines."""
    if figures["geometric_mean"] is None:
        console.print(f"{title} against the best single backend: no figures")
        return
    noise = figures["noise"]
    stated = "not known" if noise is None else f"{noise['median']:.1%}, at most {noise['largest']:.1%}"
    console.print(
        f"{title} over the best of eager and the single backends: {figures['geometric_mean']:.3f}, geometric mean of "
        f"{figures['cases']}; least {figures['least']:.3f} ({figures['least_at']}); noise {stated}"
    )
    for key, words in (
        ("slower_beyond_limit", f"slower by more than {figures['limit']:.0%}"),
        ("slower_beyond_noise", "slower beyond noise"),
        ("too_noisy", "too noisy to say"),
        ("missing", "without figures"),
    ):
        names = figures[key]
        console.print(f"{title}, {words}: {len(names)}" + (f" ({', '.join(names)})" if names else ""))
    same = figures["same_placement"]
    if same["cases"]:
        console.print(
            f"{title}, two processes with the same placement differ by {same['median']:.1%}, at most "
            f"{same['largest']:.1%} ({same['cases']} cases)"
        )
    console.print(f"{title}, goal: " + {True: "met", False: "missed", None: "open"}[figures["met"]])


def _goal(goal: Mapping[str, Any]) -> str:
    least = "" if goal["least"] is None else f", none below {goal['least']:g}"
    wanted = f"goal: {goal['ours']} at least {goal['geometric_mean']:g} times the best of {goal['against']}{least}"
    if goal["met"] is None:
        return f"{wanted}: no figures"
    return f"{wanted}: " + ("met" if goal["met"] else f"missed by a factor of {goal['missing']:.3f}")


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
