"""Workspace: what lives at once never overlaps, what is dead is reused."""

from __future__ import annotations

import sympy
import torch
from drawn_graphs import contiguous, size
from hypothesis import given
from hypothesis import strategies as st

from mixbackend.backends.codegen.ir.stages import TensorType
from mixbackend.backends.codegen.schedule.group import Layout
from mixbackend.backends.codegen.schedule.memory import Usage, aligned_bytes, plan_workspace


def size_of(*sizes: object) -> tuple[torch.dtype, sympy.Expr]:
    made = tuple(map(sympy.sympify, sizes))
    return torch.float32, aligned_bytes(Layout(TensorType(made, torch.float32), contiguous(made)))


def chain(count: int, elements: int) -> tuple[list[Usage], dict[str, tuple[torch.dtype, sympy.Expr]]]:
    usages = [Usage(frozenset({f"t{step - 1}"} if step else {"x"}), frozenset({f"t{step}"})) for step in range(count)]
    return usages, {f"t{step}": size_of(elements) for step in range(count)}


def test_a_chain_needs_two_pieces() -> None:
    usages, sizes = chain(6, 100)
    pieces, total = plan_workspace(usages, sizes)
    assert total == 2 * 448
    assert {int(piece.start) for piece in pieces} == {0, 448}


def test_symbolic_pieces_are_reused_where_sizes_are_equal() -> None:
    rows = size("s0")
    usages, sizes = chain(5, 1)
    sizes = {name: size_of(rows, 3) for name in sizes}
    pieces, total = plan_workspace(usages, sizes)
    assert len({piece.start for piece in pieces}) == 2
    assert total.subs({rows: 100}) == 2 * 1216


@given(st.data())
def test_pieces_alive_at_once_are_disjoint(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    sizes = [data.draw(st.integers(1, 200)) for _ in range(count)]
    usages = []
    for step in range(count):
        earlier = [f"t{index}" for index in range(step)]
        reads = data.draw(st.sets(st.sampled_from(earlier), max_size=3)) if earlier else set()
        usages.append(Usage(frozenset(reads), frozenset({f"t{step}"})))
    needs = {f"t{index}": size_of(elements) for index, elements in enumerate(sizes)}
    pieces, total = plan_workspace(usages, needs)
    last = {f"t{index}": index for index in range(count)}
    for step, usage in enumerate(usages):
        last.update(dict.fromkeys(usage.reads, step))
    spans = {piece.name: (int(piece.start), int(piece.start + piece.size)) for piece in pieces}
    assert spans.keys() == needs.keys()
    for name, (start, end) in spans.items():
        assert end <= total and end - start >= sizes[int(name[1:])] * 4
        for other, (begin, stop) in spans.items():
            born, died = int(name[1:]), last[name]
            overlapping_lives = int(other[1:]) <= died and born <= last[other]
            assert name == other or not overlapping_lives or end <= begin or stop <= start
