"""Softmax recompute: softmaxes of a joint graph that the backward computes again, so that they are not saved.

Place: asked by ``plan.rematerialization``, before a joint graph is split; ``plan.softmax_decomposition`` carries it
out.
Input: a planned joint graph, and what things cost there. Output: names of nodes.
The gradient of a softmax, or of its logarithm, needs the result. torch's split takes both for ops that are expensive to
repeat, because each sums rows, so the result is saved. But all that it takes to have any element again is the element
of the argument and two numbers per row, the largest value and the sum of the exponents: after that it is one pass
point by point, which the owner of the gradient makes while reading. What counts is memory then:

- a result that the forward does not need itself is written for the backward alone, the argument is there anyway;
- the argument is often narrower than the result: under autocast a product returns 16 bits per score, and the loss is
  computed in 32. The narrowest value from which the argument follows point by point is what is read.

Compilers that pad a product with rows that do not begin aligned, as of a vocabulary of odd size, copy more then:

- what such a product returns has gaps inside their region; to be saved it is copied to rows without;
- a gradient that such products read is written with its gaps by the loop that computes it. With the softmax in it, this
  loop is too long for that: the gradient is written without gaps first, and padded in another pass.

So a result is computed again where that takes less time (bytes of saved and of read values at the owner's rates,
against its arithmetic), and where no more memory is held from forward to backward, but for the two numbers per row.
Invariants: pure; what the user's own checkpointing is about stays as it says.
Non-goals: other reductions: torch's split saves their results, which are small. Chains of several large values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mixbackend.contracts import CostModel, OpGraph, OpTag, TensorMeta
from mixbackend.contracts.sizes import Size
from mixbackend.plan.fusion import Fusion

_ARITHMETIC = {"aten._log_softmax.default": 2 / 14, "aten._softmax.default": 10 / 14}
"""What computing it again takes of an op's arithmetic: two subtractions, or one, an exponent and a product."""
_AGAIN = frozenset({"pointwise", "copy"})
_LOOPS = (("pointwise", "pointwise"), ("pointwise", "reduction"), ("reduction", "pointwise"))
_SMALL = 1 / 16
"""Share of a tensor's bytes or elements that does not count beside it."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A value from which a softmax's argument follows point by point, through the ops of a path."""

    name: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class Recomputation:
    """See the module's docstring.

    Attributes:
        fusion: the planned joint graph.
        costs: of its ops and tensors.
        tangents: names of its incoming gradients.
        decided: nodes about which the user's checkpointing decides.
    """

    fusion: Fusion
    costs: CostModel
    tangents: frozenset[str]
    decided: frozenset[str]

    def nodes(self) -> frozenset[str]:
        """Softmaxes to compute again, and what has to be computed again for them."""
        backward = _depending(self.fusion.graph, self.tangents)
        found: set[str] = set()
        for node in self.fusion.graph.placed_nodes:
            if node.op in _ARITHMETIC and node.name not in backward | self.decided:
                source = self._worth_it(node.name, backward)
                found.update(() if source is None else (node.name, *source.path))
        return frozenset(found)

    def _worth_it(self, name: str, backward: frozenset[str]) -> _Source | None:
        """Where to compute a softmax from again; ``None`` if its result is better saved."""
        owner, result = self.fusion.owner[name], _tensor(self.fusion.graph, name)
        readers = tuple(self.fusion.readers(name))
        later = [reader for reader in readers if reader in backward]
        if result is None or not later or not self.fusion.pairs[owner].issuperset(_LOOPS):
            return None
        if not all(self._reads_points(reader) for reader in later):
            return None
        returned = self.fusion.is_returned(name)
        written = returned or any(not self.fusion.fuses(name, reader) for reader in readers if reader not in backward)
        saving_s = self.costs.read(owner, result) + (0.0 if written else self.costs.write(owner, result))
        rows = replace(result, shape=_row_sizes(self.fusion.graph, name, result), stride=(1,) * result.rank)
        again_s = 2 * (self.costs.read(owner, rows) + self.costs.write(owner, rows))
        view = self.fusion.graph.view(name)
        again_s += _ARITHMETIC[view.op] * self.costs.op(owner, view).seconds
        again_s += sum(map(self._copying_s, self._padded_later(result, later)))
        most = (0 if returned else result.bytes()) + _SMALL * result.bytes()
        prices = [
            (self._seconds(owner, source, backward), place, source)
            for place, source in enumerate(self._sources(name))
            if self._kept(source, backward) + 2 * rows.bytes() <= most
        ]
        seconds, _, source = min(prices, default=(saving_s, 0, None), key=lambda price: price[:2])
        return source if again_s + seconds < saving_s else None

    def _padded_later(self, result: TensorMeta, later: Sequence[str]) -> frozenset[str]:
        """Large gradients that padded products read, among what is made of a softmax point by point."""
        found = frozenset(name for reader in later for name in self.fusion.padded_operands(reader))
        return frozenset(name for name in found if self._elements(name) > result.elements() * _SMALL)

    def _copying_s(self, name: str) -> float:
        """Of a pass that writes a value once more."""
        owner, meta = self.fusion.owner[name], _tensor(self.fusion.graph, name)
        return 0.0 if meta is None else self.costs.read(owner, meta) + self.costs.write(owner, meta)

    def _elements(self, name: str) -> int:
        meta = _tensor(self.fusion.graph, name)
        return 0 if meta is None else meta.elements()

    def _reads_points(self, reader: str) -> bool:
        """Whether an op takes what is computed point by point before it from registers."""
        return ("pointwise", self.fusion.classes[reader]) in self.fusion.pairs[self.fusion.owner[reader]]

    def _sources(self, name: str) -> Iterator[_Source]:
        """Values behind the argument of a softmax, the nearest first, until one is in memory or expensive."""
        graph = self.fusion.graph
        path: tuple[str, ...] = ()
        current: str | None = graph.node_by_name[name].references()[0]
        while current is not None:
            if self.fusion.classes.get(current) == "view":
                current = graph.node_by_name[current].references()[0]
                continue
            yield _Source(current, path)
            path, current = (*path, current), self._behind(current)

    def _behind(self, name: str) -> str | None:
        """The one large tensor that an op reads, if it is cheap to repeat and its result is in no memory."""
        node = self.fusion.graph.node_by_name.get(name)
        if node is None or name in self.fusion.unfused | self.decided or self.fusion.classes.get(name) not in _AGAIN:
            return None
        result = _tensor(self.fusion.graph, name)
        if result is None or node.tags - {OpTag.VIEW}:
            return None
        large = [
            reference
            for reference in dict.fromkeys(node.references())
            if (meta := _tensor(self.fusion.graph, reference)) is not None
            and meta.elements() > result.elements() * _SMALL
            and not self._is_input(reference)
        ]
        inputs = [reference for reference in dict.fromkeys(node.references()) if self._is_input(reference)]
        if len(large) == 1 or (not large and len(inputs) == 1):
            return (large or inputs)[0]
        return None

    def _is_input(self, name: str) -> bool:
        return name in self.fusion.graph.input_by_name

    def _is_kept(self, source: _Source, backward: frozenset[str]) -> bool:
        """Whether a value is there in the backward anyway."""
        name = source.name
        return self._is_input(name) or any(reader in backward for reader in self.fusion.readers(name))

    def _kept(self, source: _Source, backward: frozenset[str]) -> int:
        """Bytes that are held from forward to backward for a source alone."""
        meta = _tensor(self.fusion.graph, source.name)
        assert meta is not None
        return 0 if self._is_kept(source, backward) else meta.bytes()

    def _seconds(self, owner: str, source: _Source, backward: frozenset[str]) -> float:
        """Of reading a source once more, and of writing it where nothing else does."""
        meta = _tensor(self.fusion.graph, source.name)
        assert meta is not None
        kept = self._is_kept(source, backward)
        in_memory = source.name in self.fusion.unfused or kept
        reading_s = self.costs.read(owner, meta) + (0.0 if in_memory else self.costs.write(owner, meta))
        return reading_s + (self._copying_s(source.name) if not kept and self._has_gaps(source.name) else 0.0)

    def _has_gaps(self, name: str) -> bool:
        """Whether a value has gaps between its rows where it is read: another owner would get a copy anyway."""
        if name not in self.fusion.padded or self.fusion.is_returned(name):
            return False
        return all(self.fusion.owner[reader] == self.fusion.owner[name] for reader in self.fusion.readers(name))


def _depending(graph: OpGraph, tangents: frozenset[str]) -> frozenset[str]:
    """Nodes that gradients go into: the backward."""
    found = set(tangents)
    for node in graph.nodes:
        if found.intersection(node.references()):
            found.add(node.name)
    return frozenset(found)


def _tensor(graph: OpGraph, name: str) -> TensorMeta | None:
    meta = graph.value(name).meta
    return meta if isinstance(meta, TensorMeta) else None


def _row_sizes(graph: OpGraph, name: str, result: TensorMeta) -> tuple[Size, ...]:
    """Sizes of a number per row."""
    dimension = dict(graph.node_by_name[name].arguments)["dim"]
    assert isinstance(dimension, int), "a softmax runs along one dimension"
    dimension %= max(result.rank, 1)
    return tuple(1 if place == dimension else size for place, size in enumerate(result.shape))
