"""Equal groups: layers that differ in the names of their tensors alone are built once.

Place: between ``grouping`` and ``build``. Input: the groups of a graph, one by one. Output: the kernels of each.
A group is rewritten with names of its own, in order of appearance: of tensors, of loops, of bound symbols; no name of a
graph begins with ``%``. Groups that are the same then have the same kernels, but for the names of buffers. A model of
equal layers in one region has as many kernels to build as one layer.
Invariants: what is built depends on nothing of a tensor but its layout and whether the program overwrites it.
Non-goals: layers of different sizes, which ``parameters`` finds to be one kernel once it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import sympy

from mixbackend.backends.codegen.ir.grammar import (
    T,
    bound_symbols_of,
    loops_of,
    map_bound_symbols,
    map_index_expressions,
    map_loops,
    rewrite,
    walk,
)
from mixbackend.backends.codegen.ir.indices import index_symbol
from mixbackend.backends.codegen.ir.kernel import AnyKernel, TemplateKernel
from mixbackend.backends.codegen.ir.scalar import Expr, Load
from mixbackend.backends.codegen.ir.stages import Loop, Stage, targets_of
from mixbackend.backends.codegen.schedule.draft import on_buffers
from mixbackend.backends.codegen.schedule.group import Group, Layout
from mixbackend.backends.codegen.schedule.rewrite import rename_targets
from mixbackend.backends.codegen.schedule.templates import renamed_buffers

Build = Callable[[Group, Mapping[str, Layout], Collection[str]], "tuple[AnyKernel, ...]"]
"""Kernels of a group, from the layouts of its tensors and those of them that the program overwrites."""

_Key = tuple[Group, tuple["Layout | None", ...], frozenset[str]]


@dataclass
class EqualGroups:
    """Builds each distinct group once.

    Attributes:
        build: makes kernels.
    """

    build: Build
    _known: dict[_Key, tuple[AnyKernel, ...]] = field(default_factory=dict)

    def kernels(
        self, group: Group, layouts: Mapping[str, Layout], overwritten: Collection[str]
    ) -> tuple[AnyKernel, ...]:
        """The kernels of a group.

        Args:
            group: of one graph; its names mean the same in all groups.
            layouts: of every tensor that the group reads or defines.
            overwritten: inputs that the program writes into.

        Raises:
            ValueError: the group breaks its invariants.
        """
        names = _Names.of(group)
        own = names.group(group)
        laid = tuple(layouts.get(name) for name in names.tensors)
        written = frozenset(mine for name, mine in names.tensors.items() if name in overwritten)
        key = (own, laid, written)
        if key not in self._known:
            known = {mine: item for mine, item in zip(names.tensors.values(), laid, strict=True) if item is not None}
            try:
                self._known[key] = self.build(own, known, written)
            except ValueError:
                self.build(group, layouts, overwritten)  # raises the same, in words of the graph
                raise
        back = {mine: name for name, mine in names.tensors.items()}
        return tuple(_on_buffers(kernel, back) for kernel in self._known[key])


@dataclass(frozen=True)
class _Names:
    """Names of a group's own.

    Attributes:
        tensors, symbols: by those of the graph, in order of appearance.
    """

    tensors: dict[str, str]
    symbols: dict[sympy.Symbol, sympy.Symbol]

    @classmethod
    def of(cls, group: Group) -> _Names:
        tensors: dict[str, str] = {}
        symbols: dict[sympy.Symbol, sympy.Symbol] = {}

        def seen(symbol: sympy.Symbol) -> None:
            if symbol not in symbols:
                symbols[symbol] = index_symbol(f"g{len(symbols)}")

        for loop in group.outer:
            seen(loop.index)
        for stage in group.stages:
            for loop in loops_of(stage):
                seen(loop.index)
            for node in (*walk(stage), stage):
                if isinstance(node, Load):
                    tensors.setdefault(node.tensor, f"%g{len(tensors)}")
                for symbol in bound_symbols_of(node):
                    seen(symbol)
            for target in targets_of(stage):
                tensors.setdefault(target, f"%g{len(tensors)}")
        return cls(tensors, symbols)

    def group(self, group: Group) -> Group:
        """The group in these names, without what it computes in words of the graph."""
        private = frozenset(self.tensors[name] for name in group.private if name in self.tensors)
        return Group(self._loops(group.outer), tuple(map(self._stage, group.stages)), private)

    def _stage(self, stage: Stage) -> Stage:
        stage = self._own(rewrite(stage, self._node))
        stage = map_loops(rename_targets(stage, self.tensors), self._loops)
        return replace(stage, origins=())

    def _node(self, node: Expr) -> Expr:
        node = self._own(node)
        return replace(node, tensor=self.tensors[node.tensor]) if isinstance(node, Load) else node

    def _own(self, node: T) -> T:
        return map_bound_symbols(map_index_expressions(node, self._index), self.symbols.__getitem__)

    def _index(self, expression: sympy.Expr) -> sympy.Expr:
        return expression.xreplace(self.symbols)

    def _loops(self, loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
        return tuple(Loop(self.symbols[loop.index], self._index(loop.size)) for loop in loops)


def _on_buffers(kernel: AnyKernel, names: Mapping[str, str]) -> AnyKernel:
    """The kernel on buffers of other names."""
    if isinstance(kernel, TemplateKernel):
        return renamed_buffers(kernel, names)
    given = {item.name: names[item.name] for item in kernel.buffers}
    buffers = tuple(replace(item, name=given[item.name]) for item in kernel.buffers)
    return replace(kernel, buffers=buffers, nests=tuple(on_buffers(nest, given) for nest in kernel.nests))
