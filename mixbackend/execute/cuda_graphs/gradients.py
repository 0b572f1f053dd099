"""Gradients that are handed out of the memory of CUDA graphs themselves, as long as no caller keeps them.

Place: around what ``recorded`` replays. Input: a recorded run, and the same without graphs. Output: a callable like
it. Gradients may be kept over calls, to be added up, while replays write over their memory. So a backward's are copied
at first, and the copies watched: if none is held any more when the next path of torch's tree begins,
``QUIET_STEPS`` times in succession, later ones are not copied.
Invariants: before any run of ours that may write over gradients that were handed out, they are looked at. If one of
them is held, the run and its backward do without graphs, which touch nothing of theirs, as long as that lasts; the
backward that made those gradients copies from then on for good. Results that share memory among themselves or with
others are always copied. Gradients are alive to the end of their path, so that no graph behind them is recorded into
their memory: another backward may run while torch's engine still adds them up. A backward that may be run again
(``retain_graph``) does without graphs, and so do the further ones of its step: what they saved must outlive them. Code
of others in the same tree, inductor's, does without graphs while gradients of ours are held.
Non-goals: streams. What reads gradients on another stream has to be done before the model is called again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from mixbackend.contracts.torch_compat import (
    GraphTree,
    ResultsOfGraph,
    backward_keeps_graph,
    copies_of,
    cuda_graph_tree,
    storages_in_use,
    storages_of,
)
from mixbackend.execute.run_function import Run

QUIET_STEPS = 3
"""After so many steps in succession without gradients that were kept they are not copied any more."""
_LOUD_STEPS = 32
"""After so many steps in which copies were kept they are not watched any more."""

_MOST_WATCHED = 64
"""Backwards with copies that are watched at once."""


class Turns:
    """What the backwards of one tree handed out since a path of it was begun."""

    def __init__(self) -> None:
        self.copied: list[tuple[Giver, Any]] = []
        self.lent: list[tuple[Giver, ResultsOfGraph]] = []
        self.without_graphs: int | None = None

    def may_replay(self, tree: GraphTree, backward: bool) -> bool:
        """Whether a run may use graphs now: nothing that a caller holds will be written over."""
        if backward and backward_keeps_graph():
            self.without_graphs = tree.generation
        if backward and self.without_graphs == tree.generation:
            return False
        if not tree.begins_anew:
            return True
        self._look_at_copies()
        if self._look_at_lent(tree):
            self.without_graphs = tree.generation
            return False
        self.without_graphs = None
        return True

    def copy(self, giver: Giver, storages: Any) -> None:
        """Watch copies that a caller has."""
        self.copied = [*self.copied[1 - _MOST_WATCHED :], (giver, storages)]

    def lend(self, giver: Giver, results: ResultsOfGraph) -> None:
        """Have what was lent looked at before it may be written over."""
        if not any(results is other for _, other in self.lent):
            self.lent.append((giver, results))

    def _look_at_copies(self) -> None:
        copied, self.copied = self.copied, []
        loud = {giver for giver, storages in copied if storages_in_use(storages)}
        for giver in {giver for giver, _ in copied}:
            giver.watched(quiet=giver not in loud)

    def _look_at_lent(self, tree: GraphTree) -> bool:
        held = tree.take_back()  # in any case: the path that it ends is let go of
        if not self.lent:
            return False
        self.lent = [(giver, results) for giver, results in self.lent if any(results is other for other in held)]
        for giver in {giver for giver, _ in self.lent}:
            giver.kept()
        return bool(self.lent)


_turns: weakref.WeakKeyDictionary[GraphTree, Turns] = weakref.WeakKeyDictionary()


class Giver:
    """What one backward's results may be; see the module's docstring.

    Args:
        emit: called when a caller has kept gradients.
    """

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._quiet = 0
        self._loud = 0
        self._lends = False
        self._copies = False

    def watched(self, quiet: bool) -> None:
        """Say whether all copies were let go before the next step."""
        self._quiet = self._quiet + 1 if quiet else 0
        self._loud += not quiet
        self._lends = self._lends or self._quiet >= QUIET_STEPS
        self._copies = self._copies or self._loud >= _LOUD_STEPS

    def kept(self) -> None:
        """Say that a caller holds what was lent."""
        if not self._copies:
            self._copies = True
            self._emit("gradients are kept into the next call: they are copied out of the graphs from now on")

    def give(self, results: Sequence[Any], tree: GraphTree | None, turns: Turns | None) -> Sequence[Any]:
        """Results as the caller may have them."""
        if tree is None or turns is None or self._copies:
            return copied(results)
        tree.keep(results)
        own = tree.latest(results) if self._lends and tree.guarded else None
        if own is not None:
            tree.hand_out(own)
            turns.lend(self, own)
            return copied(results, own.others) if own.others else results
        apart = copied(results)
        if not self._lends:
            turns.copy(self, storages_of(apart))
        return apart


class Guarded:
    """Runs a recorded graph; see the module's docstring.

    Args:
        run: replays, or warms up and records.
        plain: the same without graphs.
        device: number of the GPU.
        giver: of a backward's results, which are always copied without one; other graphs have none, and their results
            are valid until the next call.
        backward: whether it is one.
    """

    def __init__(self, run: Run, plain: Run, device: int, giver: Giver | None, backward: bool) -> None:
        self._run = run
        self._plain = plain
        self._device = device
        self._giver = giver
        self._backward = backward
        self._tree: GraphTree | None = None
        self._turns: Turns | None = None

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""
        if self._tree is None:
            self._find_tree()
        tree, turns = self._tree, self._turns
        if tree is not None and turns is not None and not turns.may_replay(tree, self._backward):
            results = self._plain(arguments)
            # Without graphs, too, results may be views of what a graph left.
            return copied(results) if self._backward else results
        results = self._run(arguments)
        if not self._backward:
            return results
        if self._giver is None:
            return copied(results)
        return self._giver.give(results, tree, turns)

    def _find_tree(self) -> None:
        """Torch keeps one for every thread and its backwards; there is none before the first recording."""
        self._tree = cuda_graph_tree(self._device)
        if self._tree is not None:
            self._turns = _turns.setdefault(self._tree, Turns())


def copied(results: Sequence[Any], places: Iterable[int] | None = None) -> list[Any]:
    """Results in memory of their own: the tensors at these places, or all."""
    chosen = range(len(results)) if places is None else places
    tensors = [(place, results[place]) for place in chosen if isinstance(results[place], torch.Tensor)]
    changed = list(results)
    dense = []
    for place, item in tensors:
        if 0 in item.stride():
            # The elements of expanded tensors share memory, which nothing can be copied into.
            changed[place] = item.clone()
        else:
            dense.append(place)
    for place, copy in zip(dense, copies_of([results[place] for place in dense]), strict=True):
        changed[place] = copy
    return changed
