"""Decisions by range of sizes: what is measured, and remembered, for each regime of a graph with symbolic sizes.

Place: between ``runtime.mixture`` and ``tuner``, for graphs that may be tuned.
Input: a captured graph and its subject. Output: ``Measured``, for whoever places the graph.
Which ranges there are follows from estimates (``runtime.regime_search``). Each is tuned at the first call in it, with
values of that call: indices and masks among them have the sizes and contents that really come. The decision for a range
is remembered under a key that holds its bounds; a graph with one plan for all sizes has the key of its subject alone.
The plan that runs the sizes of the graph's first call is among the candidates of every other range: where a range is
not worth a plan of its own after all, measuring says so.
Invariants: a decision never reaches sizes outside of the range that it was measured in.
Non-goals: moving the bounds by what was measured; values made up for sizes that did not come.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mixbackend.contracts import PlacementError
from mixbackend.contracts.region_text import read_region_text
from mixbackend.runtime.choice import Choice
from mixbackend.runtime.describe import PlaceholderRole
from mixbackend.runtime.identity import Captured
from mixbackend.runtime.layout_choice import choose_layout
from mixbackend.runtime.regime_search import Ladder, Regime
from mixbackend.runtime.regimes import Measured, ladder_of
from mixbackend.runtime.session import Session
from mixbackend.tuning import tuner
from mixbackend.tuning.decision import UNTUNED, Decision
from mixbackend.tuning.tuner import Subject

_INPUT = re.compile(r"^%\d+ = input\(\w+, (.*)\)$", re.MULTILINE)
_SHAPE = re.compile(r"^tensor\([^\[]*\[([^\]]*)\]")
_BETWEEN_SIZES = re.compile(r", (?![^(]*\))")
_HINT = re.compile(r"^# hint (\w+) -?\d+$", re.MULTILINE)


@dataclass(frozen=True)
class RangedTuning:
    """See the module's docstring.

    Attributes:
        captured: the graph.
        subject: of the graph.
        session: backends, costs, what was decided before.
        ladder: the graph's regimes, ``None`` if one plan serves all sizes.
    """

    captured: Captured
    subject: Subject
    session: Session
    ladder: Ladder | None

    @classmethod
    def of(cls, captured: Captured, subject: Subject, session: Session) -> RangedTuning:
        """Find the regimes of a graph; nothing is compiled."""
        try:
            return cls(captured, subject, session, _ladder(captured, session))
        except PlacementError:
            # Whoever places it for all sizes says so, and does what the configuration says.
            return cls(captured, subject, session, None)

    @property
    def measuring(self) -> bool:
        """Whether what was not decided before shall be measured in processes of their own.

        These time calls by the processor's clock and limit memory by its addresses, so that GPUs are left out: there,
        plans are compared at the first call.
        """
        return self.session.config.search.mode == "measure" and not self.subject.device.startswith("cuda")

    def measured(self, decision: Decision) -> Measured:
        """What is known before the graph is placed.

        Args:
            decision: for the sizes that it was captured at.
        """
        return Measured(decision, self.ladder, self._decide)

    def remembered(self) -> Decision:
        """What was decided before for the sizes that the graph was captured at; ``UNTUNED`` if nothing."""
        return tuner.remembered(self._subject(self._home), self.session)

    def at_first_call(self, values: Sequence[Any]) -> Decision:
        """Measure the graph at the sizes that it was captured at, with the values of its first call."""
        return tuner.tune_if_possible(self.captured, self._subject(self._home), values, self.session)

    @property
    def _home(self) -> Regime | None:
        return None if self.ladder is None else self.ladder.regimes[self.ladder.home]

    def _subject(self, regime: Regime | None) -> Subject:
        return self.subject if regime is None else replace(self.subject, key=f"{self.subject.key}@{regime}")

    def _decide(self, regime: Regime, values: Sequence[Any], other: Choice) -> Decision:
        """For another range, whose first call has these values; the plan that runs other sizes is a candidate."""
        subject = self._subject(regime)
        known = tuner.remembered(subject, self.session)
        if known is not UNTUNED or not self.measuring:
            return known
        given = [values[place] for place in subject.inputs]
        text = at_sizes(subject.text, given)
        region = read_region_text(text)
        roles = {item.name: PlaceholderRole(item.role) for item in region.inputs}
        captured = Captured(region.graph_module, region.phase, roles, self.captured.id)
        subject = replace(subject, text=text, inputs=tuple(range(len(given))))
        return tuner.tune_if_possible(captured, subject, given, self.session, (other,))


def _ladder(captured: Captured, session: Session) -> Ladder | None:
    if not captured.identity.graph.dynamic:
        return None
    module, phase, roles = tuner.placeable(captured, session)
    layout = choose_layout(module, phase, captured.id, roles, session)
    return ladder_of(layout, layout.plan or session.place(layout.graph), session)


def at_sizes(text: str, values: Sequence[Any]) -> str:
    """A graph's canonical text with the sizes of these values as hints of its symbols.

    Args:
        text: of the whole graph.
        values: one per input of the text.
    """
    hints: dict[str, int] = {}
    for meta, value in zip(_INPUT.findall(text), values, strict=True):
        shape = _SHAPE.match(meta)
        names = [meta] if shape is None else _BETWEEN_SIZES.split(shape[1])
        sizes = tuple(value.shape) if isinstance(value, torch.Tensor) else (value,)
        if len(names) == len(sizes):
            hints.update(zip(names, sizes, strict=True))
    return _HINT.sub(lambda found: f"# hint {found[1]} {hints[found[1]]}" if found[1] in hints else found[0], text)
