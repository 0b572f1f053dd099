"""Decisions by range of sizes: what is measured, and remembered, for each regime of a graph with symbolic sizes.

Place: between ``compile.propose`` and ``tuner``; a graph without symbolic sizes has one range.
Input: a captured graph. Output: what is known of it.
Which ranges there are follows from estimates (``plan.regime_search``). Each is tuned at the first call in it, with
values of that call: indices and masks among them have the sizes and contents that really come. The decision for a range
is remembered under a key that holds its bounds; a graph with one plan for all sizes has the key of its task alone.
The plan that runs the sizes of the graph's first call is among the candidates of every other range: where a range is
not worth a plan of its own after all, measuring says so. Where nothing was tuned, what was compared at first calls
counts.
Invariants: a decision never reaches sizes outside of the range that it was measured in.
Non-goals: moving the bounds by what was measured; values made up for sizes that did not come.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from mixbackend.contracts import PlacementError, RegionTextError
from mixbackend.contracts.region_text import read_region_text
from mixbackend.contracts.rehint import Hints
from mixbackend.graph.identity import Captured
from mixbackend.graph.prepared import Prepared
from mixbackend.plan.choice import Choice
from mixbackend.plan.environment import Environment
from mixbackend.plan.layout_choice import choose_layout
from mixbackend.plan.regime_search import Ladder, Regime
from mixbackend.plan.size_buckets import ladder_of
from mixbackend.select import decision_store, tuner
from mixbackend.select.decision import UNTUNED, Decision
from mixbackend.select.tuner import TuningTask

_INPUT = re.compile(r"^%\d+ = input\(\w+, (.*)\)$", re.MULTILINE)
_SHAPE = re.compile(r"^tensor\([^\[]*\[([^\]]*)\]")
_BETWEEN_SIZES = re.compile(r", (?![^(]*\))")
_HINT = re.compile(r"^# hint (\w+) -?\d+$", re.MULTILINE)


class RangedDecisions:
    """See the module's docstring.

    Args:
        captured: the graph.
        prepared: what of it is placed.
        environment: backends, costs, what was decided before.
    """

    def __init__(self, captured: Captured, prepared: Prepared, environment: Environment) -> None:
        self._captured = captured
        self._prepared = prepared
        self._environment = environment
        # ``None`` where nothing was decided before and nothing shall be tuned, or it cannot be.
        self._task = tuner.task_if_any(captured, environment)
        self._compared: dict[str, Decision] = {}

    @cached_property
    def ladder(self) -> Ladder | None:
        """The graph's regimes, ``None`` if it has no sizes to choose by; nothing is compiled to find them."""
        if not self._captured.dynamic:
            return None
        prepared, planner = self._prepared, self._environment.planner
        try:
            layout = choose_layout(prepared.module, prepared.phase, self._captured.id, prepared.roles, planner)
            return ladder_of(layout, layout.plan or planner.place(layout.graph), planner)
        except PlacementError:
            # Placing it for all sizes raises the same, and does what the configuration says.
            return None

    @property
    def home(self) -> Regime | None:
        """The range of the sizes that the graph was captured at."""
        return None if self.ladder is None else self.ladder.regimes[self.ladder.home]

    @property
    def measuring(self) -> bool:
        """Whether what was not decided before shall be measured in processes of their own.

        These time calls by the processor's clock and limit memory by its addresses, so that GPUs are left out: there,
        plans are compared at the first call.
        """
        task = self._task
        wanted = task is not None and not task.device.startswith("cuda")
        return wanted and self._environment.config.search.mode == "measure"

    def ends(self, regime: Regime | None) -> tuple[Hints, ...]:
        """Sizes that a decision for a range is for as well: near its ends."""
        return () if self.ladder is None or regime is None else self.ladder.ends(regime)

    def tuned(self) -> Decision:
        """What was tuned for the sizes that the graph was captured at; ``UNTUNED`` if nothing."""
        return UNTUNED if self._task is None else self._tuned(self._task, self.home)

    def compared(self) -> Decision:
        """What the comparison at the first call at these sizes decided; ``UNTUNED`` if nothing."""
        return UNTUNED if self._task is None else self._compared_in(self._task, self.home)

    def at_first_call(self, values: Sequence[Any]) -> Decision:
        """Measure the graph at the sizes that it was captured at, with the values of its first call."""
        assert self._task is not None, "it is measuring"
        return tuner.tune_if_possible(self._captured, _in_range(self._task, self.home), values, self._environment)

    def text(self, values: Sequence[Any]) -> str | None:
        """Canonical text of the graph, for other processes; ``None`` where none could read it.

        Args:
            values: inputs of a call; of graphs with symbolic sizes, the text is for theirs.
        """
        if tuner.why_untunable(self._environment):
            return None
        try:
            task = self._task or tuner.task_of(self._captured, self._environment)
        except RegionTextError:
            return None
        return at_sizes(task.text, [values[place] for place in task.inputs]) if self._captured.dynamic else task.text

    def keep_compared(self, regime: Regime | None, decision: Decision) -> None:
        """Remember what the comparison at the first call in a range decided.

        What no other process could measure, no other process finds again; a graph without a text has no key.
        """
        self._compared[str(regime)] = decision
        if tuner.why_untunable(self._environment):
            return
        with contextlib.suppress(RegionTextError):
            task = self._task or tuner.task_of(self._captured, self._environment)
            decision_store.remember(_in_range(task, regime), decision, self._environment)

    def _tuned(self, task: TuningTask, regime: Regime | None) -> Decision:
        return tuner.remembered(_in_range(task, regime), self._environment)

    def _compared_in(self, task: TuningTask, regime: Regime | None) -> Decision:
        return decision_store.remembered(_in_range(task, regime), self._environment)

    def decide(self, regime: Regime, values: Sequence[Any], other: Choice) -> Decision:
        """The decision for another range, by values of its first call; the plan that runs other sizes is a candidate.

        ``UNTUNED`` to go by estimates.
        """
        task, compared = self._task, self._compared.get(str(regime), UNTUNED)
        if task is None or compared is not UNTUNED:
            return compared
        known = self._tuned(task, regime)
        if known is not UNTUNED:
            return known
        return self._tune(task, regime, values, other) if self.measuring else self._compared_in(task, regime)

    def _tune(self, task: TuningTask, regime: Regime, values: Sequence[Any], other: Choice) -> Decision:
        given = [values[place] for place in task.inputs]
        text = at_sizes(task.text, given)
        region = read_region_text(text)
        captured = Captured.of_region(region, self._captured.id)
        tuned = replace(_in_range(task, regime), text=text, inputs=tuple(range(len(given))))
        return tuner.tune_if_possible(captured, tuned, given, self._environment, (other,))


def _in_range(task: TuningTask, regime: Regime | None) -> TuningTask:
    return task if regime is None or regime.unbounded else replace(task, key=f"{task.key}@{regime}")


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
