"""What is read of a graph's text in a process without Dynamo is what is read where it is loaded."""

from __future__ import annotations

import contextlib
import importlib
import io

from warm_processes import WarmProcesses

READ = """
import sys
import torch
from mixbackend.contracts.describe_op import value_meta
from mixbackend.contracts.region_text import read_region_text
from mixbackend.contracts.torch_compat import (
    fresh_fake_mode, fresh_symbol, is_guarded, rerun_fake, shape_env_of, symbol_facts
)

TEXT = '''mixbackend-region 1 inference
%0 = input(activation, tensor(float32, [s0, 4, s1], [mul(4, s1), s1, 1], "cpu"))
%1 = aten.mul.Tensor(self=%0, other=2.5) -> tensor(float32, [s0, 4, s1], [mul(4, s1), s1, 1], "cpu")
return(%1, tensor(float32, [s0, 4, s1], [mul(4, s1), s1, 1], "cpu"), alias=none, exact=true)
symbol(s0, size, 2, 100)
symbol(s1, size, 3, none)
# hint s0 6
# hint s1 9
'''


def read():
    region = read_region_text(TEXT)
    nodes = list(region.graph_module.graph.nodes)
    first, second = (node.meta["val"] for node in nodes[:2])
    symbols = [first.shape[0].node.expr, first.shape[2].node.expr]
    print(value_meta(first), first.dtype, first.device, second.stride(), region.key)
    print([(str(item), symbol_facts(shape_env_of(first), item)) for item in symbols])
    return first, symbols


def run(first, symbols):
    mode = fresh_fake_mode()
    numbers = [fresh_symbol(mode, "number", 4, 2, upper) for upper in (None, 9)]
    print([(str(item), mode.shape_env.var_to_range[item.node.expr]) for item in numbers])
    product = rerun_fake(torch.ops.aten.bmm.default, (first, first.transpose(1, 2)), {})
    print(value_meta(product), product.fake_mode is first.fake_mode)
    env = shape_env_of(first)
    print(is_guarded(env, symbols[0] <= 100), is_guarded(env, symbols[0] <= 99), len(env.guards))
    print(bool(first.shape[0] > 5), [str(item.expr) for item in env.guards])
    unbacked = env.create_unbacked_symint()
    print(str(unbacked), env.var_to_range[symbols[0]], len(env.var_to_sources[symbols[1]]))
    again = read()
    assert again[1] == symbols and again[0].fake_mode is not first.fake_mode
"""

PROGRAM = (
    READ
    + """
assert "torch._dynamo" not in sys.modules, "the process is not a fresh one"
state = read()
assert "torch._dynamo" not in sys.modules, "reading imports it"
run(*state)
"""
)


def test_late_modes_answer_as_whole_ones(warm: WarmProcesses) -> None:
    importlib.import_module("torch._dynamo")
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        names: dict[str, object] = {}
        exec(READ + "\nrun(*read())\n", names)
    ran = warm.run(PROGRAM)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == told.getvalue()


def test_what_a_mode_does_not_have_is_an_ordinary_error(warm: WarmProcesses) -> None:
    program = """
import copy
from mixbackend.contracts.torch_compat import fresh_fake_mode
mode = fresh_fake_mode()
assert copy.copy(mode.shape_env).unique_ids == set()
for item in (mode, mode.shape_env):
    try:
        item.nothing
    except AttributeError as error:
        print(error)
"""
    ran = warm.run(program)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "'LateFakeMode' object has no attribute 'nothing'",
        "'LateShapeEnv' object has no attribute 'nothing'",
    ]
