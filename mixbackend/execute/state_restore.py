"""State restore: calls of a graph beyond those that the user asked for, with inputs and random states put back.

Place: below ``select.comparison``, ``compile.trial_worker``, ``cuda_graphs.recording`` and ``replay``.
Input: what graphs change, the values of one call. Output: ``RepeatedCall``, the one place that holds these values; code
that times is handed it, not the values.
Invariants: every run starts from what the inputs held and where random numbers stood before the first, and so does
what comes after the context of ``repeated``; versions of inputs count no run of ours. So a cursor that a graph moves on
is at the user's place in every run. What cannot be put back is told by ``may_repeat``, what is not worth it by
``why_not_repeated``.
Non-goals: what a backend writes into without having said so.
Units: seconds, bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.contracts import OpGraph, OpTag, Region
from mixbackend.contracts.torch_compat import set_versions, versions_of
from mixbackend.execute.run_function import Run

_ONCE = frozenset({OpTag.COLLECTIVE, OpTag.EFFECT})
"""Ops that may not run more often than the user's code says, whatever is put back afterwards."""
_COPIED_PER_S = {"cpu": 5e9, "cuda": 1e12}
"""Bytes that machines read and write, about: whether a cache of gigabytes is restored beside a run of milliseconds
hangs on no more."""


@dataclass(frozen=True)
class Changes:
    """What a call changes that outlives it.

    Attributes:
        places: of the inputs that are written into.
        draws: whether random numbers are drawn.
        gpus: numbers of those with random states that count beside the processor's.
    """

    places: tuple[int, ...] = ()
    draws: bool = False
    gpus: tuple[int, ...] = ()

    @classmethod
    def of_graphs(cls, graphs: Sequence[OpGraph], placeholders: Sequence[str], gpus: Sequence[int] = ()) -> Changes:
        """What any of these graphs changes; placeholders are names of the captured graph's inputs, in order."""
        names = {name for graph in graphs for name in written_inputs(graph)}
        draws = any(OpTag.RANDOM in node.tags for graph in graphs for node in graph.nodes)
        return cls(tuple(place for place, name in enumerate(placeholders) if name in names), draws, tuple(gpus))

    @classmethod
    def of_region(cls, region: Region) -> Changes:
        """What a region on the processor changes."""
        return cls(region.written, any(OpTag.RANDOM in view.node.tags for view in region.views))


@dataclass(frozen=True)
class Again:
    """One more run of the call, in two parts, so that the second can be timed alone.

    Attributes:
        put_back: to be called before each run.
        run: runs.
    """

    put_back: Callable[[], None]
    run: Callable[[], Any]

    def __call__(self) -> Any:
        """Both."""
        self.put_back()
        return self.run()


class RepeatedCall:
    """See the module's docstring; made by ``repeated``.

    Args:
        values: of the call; those that it changes are copied now.
        changes: that every run makes.
    """

    def __init__(self, values: Sequence[Any], changes: Changes) -> None:
        self._values = tuple(values)
        self._gpus = changes.gpus
        self._written = [values[place] for place in changes.places]
        self._before = [value.detach().clone() for value in self._written]
        self._versions = versions_of(self._written)
        self._random = self._random_states() if changes.draws else None

    @property
    def changes_nothing(self) -> bool:
        """Whether runs may follow one another with nothing in between."""
        return not self._written and self._random is None

    def by(self, run: Run, around: Callable[[Callable[[], Any]], Callable[[], Any]] = lambda call: call) -> Again:
        """The call once more, run by a compiled graph.

        Args:
            run: the graph.
            around: what is done with each run beside; it is timed, too.
        """
        # Results are dropped at once: memory of a recording is free for the next run when they are.
        return Again(self.put_back, around(lambda: run(list(self._values))))

    def put_back(self) -> None:
        """Let inputs and random numbers be as before the first run."""
        if self._written:
            with torch.no_grad():
                for value, kept in zip(self._written, self._before, strict=True):
                    value.copy_(kept)
            set_versions(self._written, self._versions)
        if self._random is not None:
            processor, *others = self._random
            torch.set_rng_state(processor)
            for gpu, state in zip(self._gpus, others, strict=True):
                torch.cuda.set_rng_state(state, gpu)

    def _random_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in self._gpus)]


@contextlib.contextmanager
def repeated(values: Sequence[Any], changes: Changes) -> Iterator[RepeatedCall]:
    """A call that may be run again and again; at the end everything is as it was."""
    call = RepeatedCall(values, changes)
    try:
        with torch.random.fork_rng(list(changes.gpus)):
            yield call
    finally:
        call.put_back()


def may_repeat(graph: OpGraph, placeholders: Sequence[str]) -> bool:
    """Whether calls of a graph can be made undone.

    Args:
        placeholders: names of the captured graph's inputs: only what is written into these can be put back.
    """
    if any(_ONCE & node.tags for node in graph.nodes):
        return False
    return set(written_inputs(graph)) <= set(placeholders)


def why_not_repeated(changes: Changes, values: Sequence[Any], estimated_s: float) -> str:
    """Why it is not worth it to put back what each run of a graph changes; empty if it is.

    Args:
        values: of the call.
        estimated_s: seconds of a run: putting back may not take longer.
    """
    written = [values[place] for place in changes.places]
    # Read and written.
    seconds = sum(2 * value.nbytes / _COPIED_PER_S.get(value.device.type, 1e9) for value in written)
    if seconds <= max(estimated_s, 0.0):
        return ""
    size = sum(value.nbytes for value in written) / 2**20
    return f"the graph writes into {size:.0f} MiB, which take longer to be put back than it takes to run"


def written_inputs(graph: OpGraph) -> tuple[str, ...]:
    """Names of the graph's inputs that its ops write into, through views, too."""
    root = {item.name: item.name for item in graph.inputs}
    inputs = frozenset(root)
    found: dict[str, None] = {}
    for node in graph.nodes:
        alias = node.aliased()
        if alias is None:
            continue
        root[node.name] = root.get(alias, alias)
        if OpTag.MUTATES in node.tags:
            found[root[node.name]] = None
    return tuple(name for name in found if name in inputs)
