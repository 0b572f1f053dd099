"""Answers about nodes as text for people.

Place: behind ``NodeAnswer.to_text`` and ``mixbackend explain --why``. Input: answers and a rich console.
Invariants: as ``text``: equal answers give equal text for one width; names are shown literally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from mixbackend.contracts.plan import Refusal
from mixbackend.partitioner.breakdown import Parts
from mixbackend.partitioner.ledger import NodeOption
from mixbackend.reporting.summary import how_decided, milliseconds
from mixbackend.reporting.text import captured, plain_console, plain_table, print_line
from mixbackend.reporting.why import NodeAnswer

HEADINGS = (
    "moved alone",
    "rest adapts",
    "measured alone",
    "op",
    "from",
    "reads",
    "writes",
    "crossings",
    "entry",
)
"""Of the columns behind the backend's name; those with nothing in them are left out."""


def answers_text(answers: Sequence[NodeAnswer], width: int) -> str:
    """Answers as plain text."""
    console = plain_console(width, color=False)
    print_answers(answers, console)
    return captured(console)


def print_answers(answers: Sequence[NodeAnswer], console: Console) -> None:
    """Print answers one after the other; of several that say the same, as repeated layers do, the first in full."""
    shown = {(answer.graph, answer.node) for answer in answers}
    alike: dict[tuple[str, str, str], list[NodeAnswer]] = {}
    for answer in answers:
        if answer.follows == answer.node or (answer.graph, answer.follows) not in shown:
            alike.setdefault((answer.graph, answer.op, _body_text(answer)), []).append(answer)
    for first, *others in alike.values():
        _print_heading(first, console)
        _print_body(first, console)
        if others:
            names = ", ".join(f"%{answer.node} ({answer.region})" for answer in others)
            print_line(console, f"  the same holds for {names}")


def _print_heading(answer: NodeAnswer, console: Console) -> None:
    where = f" in {answer.module}" if answer.module else ""
    print_line(console, "")
    print_line(console, f"{answer.graph} %{answer.node}: {answer.op}{where}", "bold")
    if answer.source:
        print_line(console, f"  {answer.source}")
    follows = f", placed with %{answer.follows}" if answer.follows != answer.node else ""
    took = f"; the region was measured at {milliseconds(answer.region_s)} ms" if answer.region_s is not None else ""
    print_line(console, f"  on {answer.backend} in {answer.region}{follows}{took}")


def _body_text(answer: NodeAnswer) -> str:
    """What equal layers have in common: names differ, and only the first of them may have been placed again."""
    common = (replace(option, adapted_s=None, along=("",) * len(option.along)) for option in answer.options)
    console = plain_console(1000, color=False)
    _print_body(replace(answer, options=tuple(common)), console)
    return captured(console)


def _print_body(answer: NodeAnswer, console: Console) -> None:
    print_line(console, f"  {how_decided(answer.decided)}")
    _print_table(answer, console)
    if answer.parts is None:
        print_line(console, "  the plan cannot be priced with the present backends: only refusals are known")
    elif answer.margin_s is not None:
        print_line(console, f"  margin of this node by estimates: {milliseconds(answer.margin_s)} ms")


def _print_table(answer: NodeAnswer, console: Console) -> None:
    """The present backend first; what nobody knows, columns and backends, is left out."""
    alone = dict(answer.alone_s)
    rows = [(answer.backend, ["", "", "", *_parts(answer.parts)])]
    for option in answer.options:
        name = option.alternative.backend
        changes = [option.alternative.change_s, option.adapted_s, alone.get(name)]
        rows.append((name, [*map(_change, changes), *_parts(option.parts)]))
    rows = [(name, row) for name, row in rows if any(row)]
    shown = [place for place in range(len(HEADINGS)) if any(row[place] for _, row in rows)]
    if shown:
        table = plain_table(["ms", *(HEADINGS[place] for place in shown)], set(HEADINGS) - {"from"})
        for name, row in rows:
            table.add_row(Text(name), *(Text(row[place]) for place in shown))
        console.print(table)
    for option in answer.options:
        reason = _reason(option)
        if reason:
            print_line(console, f"  {option.alternative.backend}: {reason}")


def _change(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{'-' if seconds < 0 else '+'}{milliseconds(abs(seconds))}"


def _parts(parts: Parts | None) -> list[str]:
    if parts is None:
        return [""] * 6
    origin = parts.origin or "nothing to compute"
    numbers = [parts.reads_s, parts.writes_s, parts.crossings_s, parts.entry_s]
    text = f"{origin}, {parts.pattern}" if parts.pattern else origin
    return [milliseconds(parts.op_s), text, *map(milliseconds, numbers)]


def _reason(option: NodeOption) -> str:
    """Why it cannot go there, or what goes along."""
    alternative = option.alternative
    if alternative.refused is not None:
        return refused_text(alternative.refused, alternative.backend)
    if alternative.change_s is None:
        return "no cut of the regions would be legal"
    return f"takes {', '.join(f'%{name}' for name in option.along)} along" if option.along else ""


def refused_text(refusal: Refusal, backend: str) -> str:
    """A refusal in words; who refused is named if it is somebody else."""
    who = "refuses" if refusal.backend == backend else f"{refusal.backend} refuses what would be left of its region"
    return f"{who}: {refusal.code}" + (f", {refusal.detail}" if refusal.detail else "")
