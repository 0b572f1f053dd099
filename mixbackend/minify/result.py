"""Results of minification: which regions fail, and the smallest one that does.

Place: returned by ``minify``; printed by the command. Invariants: ``to_dict`` is plain data of schema 1.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

from mixbackend.minify.piece import Piece
from mixbackend.minify.verdict import Slowness, Verdict

SCHEMA = 1
_MOST_OPS = 6
_MOST_REGIONS = 20


@dataclass(frozen=True)
class Faulty:
    """A region that fails.

    Attributes:
        region: its name, graph and region.
        backend, phase: of it.
        verdict: what was seen.
        ops: how many it has.
        names: of its operators, with how often each is there, most frequent first.
        sources: the user's lines that it comes from.
        estimated_s: what a call was estimated to take.
        times: how many regions with the same code there are.
    """

    region: str
    backend: str
    phase: str
    verdict: Verdict
    ops: int
    names: tuple[tuple[str, int], ...]
    sources: tuple[str, ...]
    estimated_s: float
    times: int = 1

    @staticmethod
    def of(piece: Piece, backend: str, verdict: Verdict, estimated_s: float) -> Faulty:
        """A piece as a finding."""
        region = piece.region
        counts = Counter(view.op for view in region.views if view.op != "getitem")
        names = tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        return Faulty(region.id, backend, region.phase, verdict, piece.ops, names, region.sources, estimated_s)

    def again(self) -> Faulty:
        """The same with one more region of the same code."""
        return replace(self, times=self.times + 1)

    def __str__(self) -> str:
        shown = ", ".join(name if times == 1 else f"{times} {name}" for name, times in self.names[:_MOST_OPS])
        more = f" and {len(self.names) - _MOST_OPS} other ones" if len(self.names) > _MOST_OPS else ""
        same = f", and {self.times - 1} with the same code" if self.times > 1 else ""
        where = f"\n    {self.sources[0]}" if self.sources else ""
        seen = f"{self.verdict.kind} at {self.verdict.at}: {self.verdict.text}"
        return f"{self.region} on {self.backend}{same}: {seen}\n    {self.ops} ops: {shown}{more}{where}"


@dataclass(frozen=True)
class Minified:
    """See the module's docstring.

    Attributes:
        faults: regions that fail, in the order in which they run; the first was made small.
        smallest: it, ``None`` where nothing fails.
        piece: the smallest region with the values of its call.
        script: that shows the failure, ``""`` where nothing fails.
        reproduces: whether the script was run, and showed it.
        slowness: what a slow region is held against.
        examined: regions that were asked about.
        unknown: regions and graphs of which nothing can be told, with the reason.
        tried: questions that were asked of backends.
        seconds: of everything.
        over: whether the time was over before it was as small as it goes.
    """

    faults: tuple[Faulty, ...]
    smallest: Faulty | None
    piece: Piece | None
    script: str
    reproduces: bool
    slowness: Slowness | None
    examined: int
    unknown: tuple[str, ...]
    tried: int
    seconds: float
    over: bool = False

    @property
    def found(self) -> bool:
        """Whether a region fails."""
        return bool(self.faults)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        piece = self.piece
        return {
            "schema": SCHEMA,
            "found": self.found,
            "faults": [_data(fault) for fault in self.faults],
            "smallest": None if self.smallest is None else _data(self.smallest),
            "text": "" if piece is None else piece.region.text,
            "script": self.script,
            "reproduces": self.reproduces,
            "slowness": None if self.slowness is None else asdict(self.slowness),
            "examined": self.examined,
            "unknown": list(self.unknown),
            "tried": self.tried,
            "seconds": self.seconds,
            "over": self.over,
        }

    def __str__(self) -> str:
        head = f"{self.examined} regions examined in {self.seconds:.0f} s, {len(self.faults)} of them fail"
        if not self.examined:
            head = "every region runs in eager, so that there is nothing to examine: `mixbackend explain` says why"
        lines = [head, *(f"  {fault}" for fault in self.faults[:_MOST_REGIONS])]
        if self.smallest is not None:
            lines += ["", f"smallest region that fails, found in {self.tried} tries:", f"  {self.smallest}"]
            lines += ["  the time was over: it may be smaller (--limit-s)"] if self.over else []
            lines += [] if self.reproduces else ["  the script by itself does not show it"]
        if self.unknown:
            lines += ["", "nothing can be told of:", *(f"  {text}" for text in self.unknown[:_MOST_REGIONS])]
        return "\n".join(lines)


def _data(fault: Faulty) -> dict[str, Any]:
    return {**asdict(fault), "names": dict(fault.names), "sources": list(fault.sources)}
