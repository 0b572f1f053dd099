"""A frozen graph: an inference graph whose weights are constants of the compiled code.

Place: around ``compile.placed`` for inference graphs, unless the configuration says ``weights: live``.
Input: a captured inference graph. Output: a callable on the list of graph inputs, like ``PlacedGraph``.
Steps: fold batch norms, let factories depend on nothing, split off what depends on weights alone, place the rest; at
the first call compute the constants and bind the compiled regions to them. At every call the weights are held against
what was bound.
Invariants: never runs code bound to other weights than those of the call, as far as ``constants.watch`` can see. Every
tuple of weights has code of its own (layers that share a graph differ in their weights); there are at most
``MOST_TUPLES`` of them. Weights that change so often that binding, and checking what was bound, take a good part of the
time become live inputs.
With ``weights: frozen`` the model's own weights move into a file, so that memory holds what was made of them alone.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
import torch.fx

from mixbackend.compile.placed import PlacedGraph
from mixbackend.compile.regimes import Measured, Placer, RegimeGraph
from mixbackend.compile.stages import StageDriver
from mixbackend.contracts import Phase
from mixbackend.execute.bindings import Patience
from mixbackend.execute.weights.file_backed import FileBackedWeights
from mixbackend.execute.weights.watch import WeightWatch, used
from mixbackend.graph.constants.taken_out import take_constants_out
from mixbackend.graph.copies import copy_module
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.host.undisturbed import undisturbed
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event

MOST_TUPLES = 64
"""So many tuples of weights keep code of their own at once."""
_CODE_IS_READY = "code for them was ready"
_REBINDS_BEFORE_LIVE = 4
_MOST_BINDING_SHARE = 0.2


@dataclass(frozen=True)
class _Bound:
    """Weights as they were, and what was made of them.

    Attributes:
        watch: of the weights, from before their values were read.
        constants: what is passed behind the other inputs.
    """

    watch: WeightWatch
    constants: list[torch.Tensor]


@dataclass
class _Variant:
    """Code for one tuple of weights.

    Attributes:
        placed: the rest of the graph.
        bound: what it is bound to; replaced as a whole, once binding is done. Until then, and if binding fails, calls
            find the old watch, which says that weights have changed.
        wanted: the watch of the weights that it was last to be bound to.
        begun: when it was first bound, in seconds of the monotonic clock.
        rebinds: how often it was bound again.
        binding_s: seconds that binding took in all.
    """

    placed: PlacedGraph | RegimeGraph
    begun: float
    bound: _Bound | None = None
    wanted: WeightWatch | None = None
    rebinds: int = 0
    binding_s: float = 0.0

    @property
    def restless(self) -> bool:
        """Whether its weights change too often for constants to pay."""
        elapsed = time.monotonic() - self.begun
        taken = self.binding_s + self.placed.rechecked_s
        return self.rebinds >= _REBINDS_BEFORE_LIVE and taken > _MOST_BINDING_SHARE * elapsed


_Latest = tuple[PlacedGraph | RegimeGraph, _Bound]


class FrozenGraph:
    """See the module's docstring.

    Args:
        graph_module: the captured graph; owned from now on.
        phase: ``inference``.
        graph_id: its name in reports.
        roles: of its placeholders.
        constants: names of the placeholders that are constants, see ``constants.split``.
        environment: configuration, backends, costs and caches.
        on_placed: told of every placed graph, for the report.
        measured: what was measured of it, ``None`` if nothing was.
    """

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        phase: Phase,
        graph_id: str,
        roles: dict[str, PlaceholderRole],
        constants: frozenset[str],
        environment: Environment,
        on_placed: Callable[[PlacedGraph | RegimeGraph], None],
        measured: Measured | None = None,
    ) -> None:
        self._phase: Phase = phase
        self._id = graph_id
        self._roles = roles
        self._environment = environment
        self._on_placed = on_placed
        self._ids = itertools.count(1)
        self._lock = threading.RLock()
        self._live_module = copy_module(graph_module)
        passes = StageDriver(graph_id, environment.debug).run_pass
        self._split = take_constants_out(graph_module, roles, constants, passes)
        self._weights = _picker(self._split.weights)
        self._others = _picker(self._split.others)
        self._placer = Placer(phase, self._split.roles, environment, measured and self._for_whole_graph(measured))
        self._unbound: PlacedGraph | RegimeGraph | None = self._place(graph_id)
        self._variants: dict[tuple[int, ...], _Variant] = {}
        self._latest: _Latest | None = None
        self._live: PlacedGraph | RegimeGraph | None = None
        self._frozen = environment.config.weights == "frozen"
        _graphs.add(self)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""
        latest = self._latest
        if latest is None or not latest[1].watch.unchanged(arguments):
            latest = self._renew(self._weights(arguments))
        if latest is None:
            assert self._live is not None
            return self._live(arguments)
        placed, bound = latest
        values = [*self._others(arguments), *bound.constants]
        arguments.clear()
        begin = time.perf_counter()
        results = placed(values)
        used(time.perf_counter() - begin)
        return results

    def _renew(self, weights: Sequence[torch.Tensor]) -> _Latest | None:
        """Code for these weights as they are now; ``None`` if they are live inputs from now on."""
        with self._lock, undisturbed():
            if self._live is not None:
                return None
            self.drop_abandoned()
            key = tuple(map(id, weights))
            known = self._variants.get(key)
            variant = self._bind_new(key, weights) if known is None else self._bind_again(known, weights)
            if variant is None:
                return None
            assert variant.bound is not None
            self._latest = latest = (variant.placed, variant.bound)
            return latest

    def _bind_new(self, key: tuple[int, ...], weights: Sequence[torch.Tensor]) -> _Variant | None:
        if len(self._variants) >= MOST_TUPLES:
            self._go_live(f"more than {MOST_TUPLES} models or layers share this graph")
            return None
        placed = self._unbound = self._unbound or self._place(f"{self._id}+{next(self._ids)}")
        file = self._move_to_file(weights) if self._frozen else None
        variant = _Variant(placed, time.monotonic())
        self._bind(variant, weights)
        self._unbound, self._variants[key] = None, variant
        if file is not None:
            file.release()
        return variant

    def _watch(self, weights: Sequence[torch.Tensor]) -> WeightWatch:
        # Frozen weights were promised not to change unseen, and looking at them would bring them back to memory.
        return WeightWatch(weights, self._split.weights, content=not self._frozen)

    def _move_to_file(self, weights: Sequence[torch.Tensor]) -> FileBackedWeights | None:
        try:
            return FileBackedWeights(weights)
        except OSError as error:
            self._event("fallback", f"the model's own weights stay in memory beside the constants: {error}")
            return None

    def _bind_again(self, variant: _Variant, weights: Sequence[torch.Tensor]) -> _Variant | None:
        assert variant.bound is not None
        change = variant.bound.watch.change()
        if not change:
            return variant
        if variant.restless:
            self._go_live(f"weights change too often for constants to pay, last through {change}")
            return None
        self._event("weights_rebuilt", f"constants were made again after {change}")
        variant.rebinds += change != _CODE_IS_READY
        behind = self._bind(variant, weights, patient=True)
        if behind:
            self._event("weights_rebuilt", f"eager runs {behind} regions until the code for them is ready")
        return variant

    def _patience(self, variant: _Variant, watch: WeightWatch) -> Patience:
        """Wait for code as long as its values are the latest; the next call after it is ready binds again."""

        def ready(seconds: float) -> None:
            variant.binding_s += seconds
            watch.expire(_CODE_IS_READY)

        return Patience(lambda: variant.wanted is watch, ready)

    def _bind(self, variant: _Variant, weights: Sequence[torch.Tensor], patient: bool = False) -> int:
        """Bind the rest of the graph; how many regions eager runs until they are bound again."""
        begin = time.monotonic()
        # Before their values are read: what is written meanwhile will be seen as a change.
        watch = variant.wanted = self._watch(weights)
        # Detached twice over: what the graph of constants returns may be its input itself.
        constants = [value.detach() for value in self._split.constants.forward(*map(torch.detach, weights))]
        placeholders = [node.name for node in self._split.main.graph.find_nodes(op="placeholder")]
        names = placeholders[len(placeholders) - len(constants) :]
        patience = self._patience(variant, watch) if patient else None
        behind = variant.placed.bind(dict(zip(names, constants, strict=True)), patience)
        if any(value.is_cuda for value in constants):
            # Later calls may come on other streams, which do not wait for this one.
            torch.cuda.current_stream().synchronize()
        watch.settle()
        variant.bound = _Bound(watch, constants)
        variant.binding_s += time.monotonic() - begin
        return behind

    def _go_live(self, reason: str) -> None:
        self._event("fallback", f"weights are live inputs from now on: {reason}")
        placer = Placer(self._phase, self._roles, self._environment)
        self._live = placer(copy_module(self._live_module), f"{self._id}+live")
        self._on_placed(self._live)
        self._variants.clear()
        self._latest = None

    def _place(self, graph_id: str) -> PlacedGraph | RegimeGraph:
        placed = self._placer(copy_module(self._split.main), graph_id)
        self._on_placed(placed)
        return placed

    def _for_whole_graph(self, measured: Measured) -> Measured:
        """Measuring takes the values of the whole graph, where what is placed takes constants instead of weights."""
        decide = measured.decide
        return replace(measured, decide=lambda regime, values, other: decide(regime, self._whole(values), other))

    def _whole(self, values: Sequence[Any]) -> list[Any]:
        """The inputs of the whole graph for those of the main part."""
        given = len(self._split.others)
        constants = [id(value) for value in values[given:]]
        records = [item.bound for item in [*self._variants.values()] if item.bound is not None]
        weights = next(item.watch.tensors for item in records if [id(value) for value in item.constants] == constants)
        places = (*self._split.others, *self._split.weights)
        whole = dict(zip(places, (*values[:given], *weights), strict=True))
        return [whole[place] for place in sorted(whole)]

    def drop_abandoned(self) -> None:
        """Let go of what was made of weights that nobody else holds any more."""
        for key, variant in list(self._variants.items()):
            if variant.bound is None or not variant.bound.watch.abandoned:
                continue
            self._variants.pop(key, None)
            if self._latest is not None and self._latest[0] is variant.placed:
                self._latest = None
            variant.placed.let_go()

    def _event(self, kind: Any, detail: str) -> None:
        self._environment.events.append(Event(kind, self._id, "", "", detail))


_FULL_COLLECTION = 2
_graphs: weakref.WeakSet[FrozenGraph] = weakref.WeakSet()


def _drop_abandoned_anywhere(phase: str, info: Mapping[str, Any]) -> None:
    """After a full collection of garbage: let go of what was made of weights that are no more.

    Torch may keep a graph long after its model is gone. A finaliser of a weight would be told at once, but a tensor
    with weak references of Python cannot be swapped (``torch.utils.swap_tensors``). Takes no lock: it may come in the
    middle of anything.
    """
    if phase != "stop" or info["generation"] < _FULL_COLLECTION:
        return
    for graph in list(_graphs):
        graph.drop_abandoned()


gc.callbacks.append(_drop_abandoned_anywhere)


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Takes these places out of a list."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: [values[place] for place in places]
