"""The private parts of torch that region texts stand on."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch._guards import TracingContext, tracing
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.contracts.torch_compat import (
    SymbolFacts,
    declare_symbol,
    fresh_fake_mode,
    is_fake,
    outside_compilation,
    shape_env_of,
    symbol_facts,
    symbolic_expression,
    symbolic_functions,
    symbolic_hint,
    symbolic_number,
)


def test_every_symbolic_function_is_a_sympy_class() -> None:
    functions = symbolic_functions()
    assert {"FloorDiv", "Mod", "Max", "Min", "PythonMod", "CleanDiv", "ModularIndexing"} <= set(functions)
    assert functions["FloorDiv"](sympy.Integer(7), sympy.Integer(2)) == 3


@pytest.mark.parametrize(
    "facts",
    [
        SymbolFacts("size", 2, None, 6),
        SymbolFacts("size", 1, 512, 1),
        SymbolFacts("size", 4, 4096, None),
        SymbolFacts("integer", None, None, -3),
        SymbolFacts("integer", 0, 9, 0),
        SymbolFacts("unbacked", 0, None, None),
    ],
)
def test_a_declared_symbol_has_the_facts_it_was_declared_with(facts: SymbolFacts) -> None:
    shape_env = fresh_fake_mode().shape_env
    symbol = declare_symbol(shape_env, "s0", facts)
    found = symbol_facts(shape_env, symbol)
    assert (found.kind, found.lower, found.upper) == (facts.kind, facts.lower, facts.upper)
    assert facts.hint is None or found.hint == facts.hint


def test_declared_symbols_are_distinct_even_with_equal_hints() -> None:
    shape_env = fresh_fake_mode().shape_env
    first, second = (declare_symbol(shape_env, name, SymbolFacts("size", 2, None, 6)) for name in ("s0", "s1"))
    assert first != second


def test_symbolic_numbers() -> None:
    shape_env = fresh_fake_mode().shape_env
    symbol = declare_symbol(shape_env, "s0", SymbolFacts("size", 2, None, 6))
    number = symbolic_number(shape_env, 2 * symbol + 1)
    assert isinstance(number, torch.SymInt)
    assert symbolic_expression(number) == 2 * symbol + 1
    assert symbolic_hint(number) == 13
    assert symbolic_number(shape_env, sympy.Integer(5)) == 5
    assert shape_env_of(number) is shape_env
    assert not shape_env.guards


def test_fake_tensors_know_their_mode() -> None:
    mode = fresh_fake_mode()
    with mode:
        fake = torch.empty(2)
    assert is_fake(fake)
    assert not is_fake(torch.empty(2))
    assert shape_env_of(fake) is mode.shape_env
    assert shape_env_of(torch.empty(2)) is None
    assert shape_env_of(3) is None


def test_outside_compilation_nothing_is_fake_or_dynamic() -> None:
    mode = fresh_fake_mode()
    with tracing(TracingContext(mode)), mode, outside_compilation():
        value = torch.ones(3, 4)
        traced = make_fx(lambda x: x * 2, tracing_mode="fake")(value)
        assert TracingContext.try_get() is None
    assert not is_fake(value)
    (source,) = traced.graph.find_nodes(op="placeholder")
    assert source.meta["val"].fake_mode is not mode
    assert all(isinstance(size, int) for size in source.meta["val"].shape)
