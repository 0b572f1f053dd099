"""Weight bindings: the constants that were made of each tuple of weights, and whether they still hold.

Place: asked by ``compile.executable`` where a call's weights are not those of the call before.
Input: the weights of a call. Output: ``Binding``: constants, and the row of entries that is bound to them.
Invariants: code never runs that is bound to other weights than those of the call, as far as ``execute.weights.watch``
can see. Every tuple of weights has a row of its own (layers that share a graph differ in their weights); there are at
most ``MOST_TUPLES`` of them. Weights that change so often that binding, and checking what was bound, take a good part
of the time become live inputs.
One thread binds a tuple, others that come with that very tuple wait for it; no lock is held meanwhile.
With ``weights: frozen`` the model's own weights move into a file, so that memory holds what was made of them alone.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import torch

from mixbackend.backends.common import forks
from mixbackend.compile.making import Making, claimed
from mixbackend.compile.program import Proposal
from mixbackend.compile.sized_graph import Row, SizedGraph
from mixbackend.execute.bindings import BackgroundRebind
from mixbackend.execute.weights.file_backed import FileBackedWeights
from mixbackend.execute.weights.owned import OwnedWeights
from mixbackend.execute.weights.watch import WeightWatch
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event

MOST_TUPLES = 64
"""So many tuples of weights keep code of their own at once."""
_CODE_IS_READY = "code for them was ready"
_REBINDS_BEFORE_LIVE = 4
_MOST_BINDING_SHARE = 0.2

Picker = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Binding:
    """Weights as they were, what was made of them, and what runs them.

    Attributes:
        row: the entries that are bound to them.
        watch: of the weights, from before their values were read; ``None`` where weights are inputs as others are.
        constants: what is passed behind the other inputs.
        others: takes the other inputs out of a call's.
    """

    row: Row
    watch: WeightWatch | OwnedWeights | None = None
    constants: tuple[torch.Tensor, ...] = ()
    others: Picker = list

    def holds(self, arguments: list[Any]) -> bool:
        """Whether a call comes with these weights, unchanged."""
        return self.watch is None or self.watch.unchanged(arguments)

    def values(self, arguments: list[Any]) -> list[Any]:
        """The inputs of the placed graph; empties the list of those of the captured one."""
        if self.watch is None:
            return arguments
        values = [*self.others(arguments), *self.constants]
        arguments.clear()
        return values

    def change(self) -> str:
        """Why it does not hold any more, in words; empty if it does."""
        return "" if self.watch is None else self.watch.change()

    @property
    def weights(self) -> tuple[torch.Tensor, ...]:
        """What the constants were made of."""
        return () if self.watch is None else self.watch.tensors


@dataclass(frozen=True)
class _Waiting(Binding):
    """A binding some regions of which eager runs, until the code for them is ready.

    Attributes:
        rebind: what makes that code.
    """

    rebind: BackgroundRebind = field(kw_only=True)

    def holds(self, arguments: list[Any]) -> bool:
        """It does not, either, once code is ready."""
        return not self.rebind.ready and super().holds(arguments)

    def change(self) -> str:
        """See ``Binding.change``."""
        return super().change() or (_CODE_IS_READY if self.rebind.ready else "")


@dataclass
class _Variant:
    """What is kept of one tuple of weights.

    Attributes:
        row: its entries.
        begun: when it was first bound, in seconds of the monotonic clock.
        binding: what it is bound to; replaced as a whole, once binding is done. Until then, and if binding fails, calls
            find the old watch, which says that weights have changed.
        behind: the code that was last to be made in the background.
        behind_s: seconds that making such code took, until they are added to the others.
        rebinds: how often it was bound again.
        binding_s: seconds that binding took in all.
    """

    row: Row
    begun: float
    binding: Binding | None = None
    behind: BackgroundRebind | None = None
    behind_s: deque[float] = field(default_factory=deque)
    rebinds: int = 0
    binding_s: float = 0.0

    @property
    def restless(self) -> bool:
        """Whether its weights change too often for constants to pay."""
        while self.behind_s:
            self.binding_s += self.behind_s.popleft()
        elapsed = time.monotonic() - self.begun
        taken = self.binding_s + self.row.rechecked_s
        return self.rebinds >= _REBINDS_BEFORE_LIVE and taken > _MOST_BINDING_SHARE * elapsed


class RestlessWeightsError(Exception):
    """Constants do not pay, with the reason."""


class WeightBindings:
    """See the module's docstring.

    Args:
        sized: what runs; its graph was split.
        first: the row that the first tuple of weights takes; others are built when they come.
        graph_id: name of the captured graph.
        environment: configuration, backends, costs and caches.
    """

    def __init__(self, sized: SizedGraph, first: Row, graph_id: str, environment: Environment) -> None:
        split = sized.prepared.split
        assert split is not None, "its weights are inputs"
        self._sized = sized
        self._split = split
        self._graph_id = graph_id
        self._environment = environment
        self._unbound = [first]
        self._lock = forks.lock()  # of writes to the table
        self._variants: dict[tuple[int, ...], _Variant | Making[_Variant] | None] = {}
        self._ids = itertools.count(1)
        self._others = _picker(split.others)
        self._frozen = environment.config.weights == "frozen"
        self.weights = _picker(split.weights)
        """Takes the weights out of a call's inputs."""

    def of(self, weights: Sequence[torch.Tensor]) -> Binding:
        """Constants of these weights as they are now.

        Raises:
            RestlessWeightsError: they do not pay.
            ReenteredError: this thread is making them.
        """
        self.drop_abandoned()
        key = tuple(map(id, weights))
        known = self._variants.get(key)
        if known and known.binding is not None and not known.binding.change():
            return known.binding
        try:
            with claimed(self._lock, self._variants, key) as known:
                if known is not None:
                    return self._bound_again(known, weights)
                variant, binding = self._bound_first(weights)
                with self._lock:
                    self._variants[key] = variant
                return binding
        finally:
            self._forget_unbound(key)

    def holding(self, arguments: list[Any]) -> Binding | None:
        """The binding of a call's weights, if they have one and it still holds; takes no lock and makes nothing."""
        variant = self._variants.get(tuple(map(id, self.weights(arguments))))
        binding = variant.binding if variant else None
        return binding if binding is not None and binding.holds(arguments) else None

    def place_as(self, home: Proposal) -> None:
        """Rows of further weights are placed this way at the sizes that the graph was captured at."""
        self._sized = replace(self._sized, home=home)

    def drop_abandoned(self) -> list[Row]:
        """Let go of what was made of weights that nothing else holds any more; takes no lock."""
        dropped = []
        for key, variant in list(self._variants.items()):
            if not variant or variant.binding is None:
                continue
            watch = variant.binding.watch
            if watch is not None and watch.abandoned and self._variants.pop(key, None) is not None:
                variant.row.release()
                dropped.append(variant.row)
        return dropped

    def _forget_unbound(self, key: tuple[int, ...]) -> None:
        with self._lock:
            if self._variants.get(key, key) is None:
                del self._variants[key]

    def _bound_first(self, weights: Sequence[torch.Tensor]) -> tuple[_Variant, Binding]:
        if len(self._variants) > MOST_TUPLES:
            raise RestlessWeightsError(f"more than {MOST_TUPLES} models or layers share this graph")
        row = self._unbound.pop() if self._unbound else self._new_row()
        try:
            file = self._move_to_file(weights) if self._frozen else None
            variant = _Variant(row, time.monotonic())
            binding, _ = self._bind(variant, weights)
        except BaseException:
            self._unbound.append(row)  # what is interrupted is taken up by the next call
            raise
        if file is not None:
            file.release()
        return variant, binding

    def _new_row(self) -> Row:
        return Row.begun(self._sized, f"{self._graph_id}+{next(self._ids)}", self._environment)

    def _bound_again(self, variant: _Variant, weights: Sequence[torch.Tensor]) -> Binding:
        assert variant.binding is not None, "it is kept once it is bound"
        change = variant.binding.change()
        if not change:
            return variant.binding
        if variant.restless:
            raise RestlessWeightsError(f"weights change too often for constants to pay, last through {change}")
        self._emit("weights_rebuilt", f"constants were made again after {change}")
        variant.rebinds += change != _CODE_IS_READY
        binding, pending = self._bind(variant, weights, in_background=True)
        if pending:
            self._emit("weights_rebuilt", f"eager runs {pending} regions until the code for them is ready")
        return binding

    def _bind(
        self, variant: _Variant, weights: Sequence[torch.Tensor], in_background: bool = False
    ) -> tuple[Binding, int]:
        """Bind a row; and how many regions eager runs until they are bound again."""
        begin = time.monotonic()
        # Before their values are read: what is written meanwhile will be seen as a change. Frozen weights were
        # promised not to change unseen, and looking at them would bring them back to memory.
        watch = self._watch(weights)
        if variant.behind is not None:
            variant.behind.wanted = False
        rebind = variant.behind = BackgroundRebind(variant.behind_s) if in_background else None
        # Detached twice over: what the graph of constants returns may be its input itself.
        constants = [value.detach() for value in self._split.constants.forward(*map(torch.detach, weights))]
        pending = variant.row.bind(dict(zip(self._sized.prepared.constants, constants, strict=True)), rebind)
        if any(value.is_cuda for value in constants):
            # Later calls may come on other streams, which do not wait for this one.
            torch.cuda.current_stream().synchronize()
        variant.row.watch = watch
        watch.settle()
        made = variant.row, watch, tuple(constants), self._others
        variant.binding = _Waiting(*made, rebind=rebind) if rebind is not None and pending else Binding(*made)
        variant.binding_s += time.monotonic() - begin
        return variant.binding, pending

    def _watch(self, weights: Sequence[torch.Tensor]) -> WeightWatch | OwnedWeights:
        if self._environment.owns_weights:
            return OwnedWeights(weights, self._split.weights)
        return WeightWatch(weights, self._split.weights, content=not self._frozen)

    def _move_to_file(self, weights: Sequence[torch.Tensor]) -> FileBackedWeights | None:
        try:
            return FileBackedWeights(weights)
        except OSError as error:
            self._emit("fallback", f"the model's own weights stay in memory beside the constants: {error}")
            return None

    def _emit(self, kind: Any, detail: str) -> None:
        self._environment.events.append(Event(kind, self._graph_id, "", "", detail))


def _picker(places: Sequence[int]) -> Picker:
    """Takes these places out of a list."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: [values[place] for place in places]
