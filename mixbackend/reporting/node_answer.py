"""The answer to why a node is where it is: as a value, as plain data, and as text for people.

Place: made by ``why``; returned by ``Report.why``, printed by ``mixbackend explain --why``.
Invariants: equal answers give equal text for one width; names are shown literally.
Units: seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from mixbackend.contracts.plan import Refusal
from mixbackend.partitioner.alternatives import margin
from mixbackend.partitioner.breakdown import Parts
from mixbackend.partitioner.counterfactuals import NodeOption
from mixbackend.reporting.decided import Decided, alternative_data
from mixbackend.reporting.summary import how_decided, milliseconds
from mixbackend.reporting.text import captured, plain_console, plain_table, print_line
from mixbackend.reporting.trials import finite

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


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """Why one node is where it is, and what everything else would cost.

    Attributes:
        graph: id.
        node, op, module, source: of the node; ``source`` is the user's line.
        follows: name of the op that it is placed with, itself if it computes something.
        region, backend: where it is.
        region_s: measured seconds of that region, ``None`` if it was not timed.
        parts: what its estimate is made of; ``None`` if the plan cannot be priced any more.
        options: the other backends.
        alone_s: by backend, seconds that the whole graph was measured to take longer on it alone.
        decided: how the graph's placement came about.
    """

    graph: str
    node: str
    op: str
    module: str
    source: str
    follows: str
    region: str
    backend: str
    region_s: float | None
    parts: Parts | None
    options: tuple[NodeOption, ...]
    alone_s: tuple[tuple[str, float], ...]
    decided: Decided

    @property
    def margin_s(self) -> float | None:
        """Estimated seconds that the next best backend for this node would cost more."""
        return margin([option.alternative for option in self.options])

    def to_dict(self) -> dict[str, Any]:
        """Plain data; seconds, ``None`` where nothing is known."""
        alone = dict(self.alone_s)
        rows = [
            {
                **alternative_data(option.alternative),
                "along": list(option.along),
                "adapted_change_s": finite(option.adapted_s),
                "measured_alone_change_s": alone.get(option.alternative.backend),
                "parts": _parts_data(option.parts),
            }
            for option in self.options
        ]
        return {
            "graph": self.graph,
            "node": self.node,
            "op": self.op,
            "module": self.module,
            "source": self.source,
            "follows": self.follows,
            "region": self.region,
            "backend": self.backend,
            "region_measured_s": self.region_s,
            "parts": _parts_data(self.parts),
            "margin_s": finite(self.margin_s),
            "decided": self.decided.to_dict(),
            "alternatives": rows,
        }

    def to_text(self, *, width: int = 140) -> str:
        """A heading and a table."""
        return answers_text([self], width)

    def __str__(self) -> str:
        return self.to_text()


def _parts_data(parts: Parts | None) -> dict[str, Any] | None:
    return None if parts is None else {**asdict(parts), "total_s": parts.total_s}


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
    """The present backend first; what is unknown, columns and backends, is left out."""
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
    """A refusal in words; the backend that refused is named if it is another one."""
    subject = "refuses" if refusal.backend == backend else f"{refusal.backend} refuses what would be left of its region"
    return f"{subject}: {refusal.code}" + (f", {refusal.detail}" if refusal.detail else "")
