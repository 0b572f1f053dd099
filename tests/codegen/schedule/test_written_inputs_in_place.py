"""Writes into region inputs: stages, programs and compiled code leave in memory what eager leaves there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from drawn_graphs import cpu_traits

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.check import check_program, check_stages
from mixbackend.backends.codegen.ir.program import Program
from mixbackend.backends.codegen.ir.stages import StageGraph
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.backends.codegen.lower.rules import RefusedError
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.check_groups import check_groups
from mixbackend.backends.codegen.schedule.group import Group
from mixbackend.backends.codegen.schedule.grouping import choose_layouts, group_stages
from mixbackend.backends.codegen.schedule.schedule import schedule
from mixbackend.backends.codegen.schedule.simplify import simplify
from mixbackend.backends.codegen.schedule.write_inputs import place_writes
from mixbackend.compile.replay import make_inputs
from mixbackend.contracts import IrError, Region, RegionSketch, Supported, Unsupported
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
COPY = aten.copy_.default


def rand(*sizes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.rand(sizes, generator=generator)


def traced(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Region, list[Any]]:
    """A region and its inputs in the region's order."""
    region = trace_region(function, inputs)
    by_name = {f"arg{place}_1": value for place, value in enumerate(inputs)}
    return region, [by_name[item.name] for item in region.inputs]


def fresh(values: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def assert_same(region: Region, inputs: Sequence[Any], run: Callable[[list[Any]], Sequence[torch.Tensor]]) -> None:
    mine, theirs = fresh(inputs), fresh(inputs)
    outputs, expected = run(mine), region.graph_module.forward(*theirs)
    assert len(outputs) == len(expected)
    for result, eager in zip((*outputs, *mine), (*expected, *theirs), strict=True):
        torch.testing.assert_close(result, eager)


def check(function: Callable[..., Any], inputs: Sequence[Any]) -> Program:
    """Everything but machine code, held against eager; the program for a closer look."""
    region, actual = traced(function, inputs)
    assert all(judge_op(view) == Supported() for view in region.views)
    graph = lower_region(region)
    check_stages(graph)
    assert_same(region, actual, lambda values: interpret_stages(graph, values))
    placed = place_writes(simplify(graph, {})[0])
    check_stages(placed)
    assert_same(region, actual, lambda values: interpret_stages(placed, values))
    traits = cpu_traits(parallel_width=4)
    check_groups(placed, group_stages(placed, choose_layouts(placed), traits)[0])
    program = schedule(graph, traits)
    check_program(program)
    assert_same(region, actual, lambda values: interpret_program(program, values))
    return program


def running_statistics(x, mean, variance, count):
    result = aten._native_batch_norm_legit_functional.default(x, None, None, mean, variance, True, 0.1, 1e-5)
    COPY(mean, result[3])
    COPY(variance, result[4])
    COPY(count, count + 1)
    return result[0].relu(), result[1], result[2]


def swap(x, y):
    first, second = y * 1, x * 1
    return COPY(x, first), COPY(y, second)


def interleaved(x, y):
    before = x * 2
    COPY(x, y)
    between = x + 1
    COPY(x, x + y)
    return before, between, x * 3


def through_views(x, y):
    COPY(x, y)
    return x.t() + 1, x.flatten()[3:] * 2


def cache_rows(cache, rows, update):
    new = aten.index_put.default(cache, [None, rows], update)
    COPY(cache, new)
    return (new.sum(),)


def cache_of_one(cache, rows, update):
    """A batch of one and one row: loops of one step, whose indices are zeros."""
    new = aten.index_copy.default(cache, 2, rows, update)
    COPY(cache, new)
    return (new.sum(),)


def cache_in_place(cache, rows, update):
    before = cache.sum()
    aten.index_copy_.default(cache, 2, rows, update)
    return before, cache.sum(1)


def put_in_place(cache, rows, update):
    aten.index_put_.default(cache, [None, None, rows], update)
    return (cache * 2).sum(1), cache.flatten()[3:].exp()


def own_memory(x, y):
    made = torch.zeros_like(x)
    COPY(made, y)
    return made + 1, made


INTEGERS = torch.tensor([3, 50])
CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "f(x)": (lambda x, m: COPY(x, x * 0.9 + m * 0.1), [rand(64), rand(64)]),
    "x backwards": (lambda x: (COPY(x, x.flip(0)), x * 2), [rand(64)]),
    "x transposed": (lambda x: COPY(x, x.t() * 2), [rand(32, 32)]),
    "x by its sum": (lambda x: COPY(x, x / x.sum(0)), [rand(40, 30)]),
    "x summed up": (lambda x: (COPY(x, x.cumsum(0)), x.sum()), [rand(20, 30)]),
    "x itself": (lambda x: (COPY(x, x), x * 2), [rand(64)]),
    "swap": (swap, [rand(64), rand(64)]),
    "two writes into one": (interleaved, [rand(64), rand(64)]),
    "read through views": (through_views, [rand(8, 8), rand(8, 8)]),
    "memory of the region": (own_memory, [rand(64), rand(64)]),
    "float to integer": (lambda x, y: COPY(x, y * 7), [torch.arange(64), rand(64)]),
    "float to bool": (lambda x, y: COPY(x, y.floor()), [torch.ones(64, dtype=torch.bool), rand(64) * 2]),
    "to bfloat16": (lambda x, y: COPY(x, x * 0.5 + y), [rand(64).bfloat16(), rand(64)]),
    "broadcast": (lambda x, y: COPY(x, y), [rand(5, 10), rand(10)]),
    "no dimensions": (lambda x, y: COPY(x, (y + x).sum()), [torch.tensor(1.0), rand(64)]),
    "nothing": (lambda x, y: (COPY(x, x + y), y * 2), [rand(0, 4), rand(4)]),
    "strided": (lambda x, y: COPY(x, x + y), [rand(8, 16).t(), rand(8)]),
    "statistics": (running_statistics, [rand(8, 16, 5, 5), rand(16), rand(16), torch.tensor(5)]),
    "cache, rows": (cache_rows, [rand(4, 60, 16), INTEGERS, rand(4, 2, 16)]),
    "cache, one row": (cache_of_one, [rand(1, 4, 60, 16), INTEGERS[:1], rand(1, 4, 1, 16)]),
    "cache, in place": (cache_in_place, [rand(1, 4, 60, 16), INTEGERS, rand(1, 4, 2, 16)]),
    "put, in place": (put_in_place, [rand(1, 4, 60, 16), INTEGERS, rand(1, 4, 2, 16)]),
    "cache, slice": (
        lambda cache, update: (lambda new: (COPY(cache, new), new.sum(1)))(
            aten.slice_scatter.default(cache, update, 1, 10, 12)
        ),
        [rand(4, 60, 16), rand(4, 2, 16)],
    ),
    "rows from its own rows": (
        lambda x, rows: COPY(x, aten.index_copy.default(x, 0, rows, x[:2])),
        [rand(60, 16), INTEGERS],
    ),
    "rows added": (
        lambda x, rows, update: COPY(x, aten.index_add.default(x, 0, rows, update)),
        [rand(60, 16), torch.tensor([3, 3]), rand(2, 16)],
    ),
    "value used by a later write": (
        lambda x, y: (lambda new: (COPY(x, new), COPY(y, new * 2 + y.flip(0)), new + 1))(x * y),
        [rand(64), rand(64)],
    ),
}


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", CASES)
def test_inputs_hold_what_eager_leaves_there(name):
    check(*CASES[name])


@pytest.mark.parametrize("name", ["f(x)", "x backwards", "two writes into one", "read through views", "strided"])
def test_symbolic_sizes(name):
    region = trace_region(*CASES[name], dynamic=True)
    assert region.dynamic
    program = schedule(lower_region(region), cpu_traits(parallel_width=4))
    check_program(program)
    assert_same(region, make_inputs(region), lambda values: interpret_program(program, values))


LARGE = {
    "many statistics": (running_statistics, [rand(24, 16, 90, 40), rand(16), rand(16), torch.tensor(5)]),
    "a large square": (lambda x: COPY(x, x.t() * 2), [rand(500, 500)]),
    "a large sum": (lambda x, y: COPY(x, x + y.sum(0)), [rand(300), rand(400, 300)]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["statistics", "cache, rows", "swap", "x backwards", "to bfloat16", "nothing", *LARGE])
def test_machine_code(name):
    backend = CodegenBackend()
    assert backend.availability().available
    region, actual = traced(*{**CASES, **LARGE}[name])
    assert_same(region, actual, backend.compile(region).run)


def test_the_kernel_that_computes_a_value_writes_it():
    (kernel,) = check(*CASES["f(x)"]).kernels
    assert [buffer.access for buffer in kernel.buffers] == ["update", "read"]


def test_statistics_are_updated_where_they_are_computed():
    first, *_ = check(*CASES["statistics"]).calls
    assert {"arg1_1", "arg2_1"} <= set(first.buffers)


def test_rows_of_a_cache_are_written_alone():
    first, *_ = check(*CASES["cache, rows"]).kernels
    writing = first.nests[0]
    extents = sorted(str(loop.extent) for loop in (*first.outer, *writing.loops))
    assert "60" not in extents, "the other rows stay untouched"
    assert first.buffers[0].access == "update"
    assert len(first.nests) <= 2


def test_what_is_read_elsewhere_first_goes_through_memory_of_its_own():
    assert len(check(*CASES["x backwards"]).workspace) == 1
    assert len(check(*CASES["f(x)"]).workspace) == 0


def test_a_copy_onto_itself_is_no_kernel():
    program = check(lambda x: COPY(x, x), [rand(64)])
    assert program.calls == ()
    assert program.written == ("arg0_1",)


def sketch(region: Region) -> RegionSketch:
    return RegionSketch(region.views, (), (), 1.0)


def refused(function: Callable[..., Any], inputs: Sequence[Any]) -> Unsupported | None:
    """The same answer from the backend and from lowering."""
    region, _ = traced(function, inputs)
    answer = CodegenBackend().decline(sketch(region))
    if answer is None:
        lower_region(region)
        return None
    with pytest.raises(RefusedError):
        lower_region(region)
    return answer


def late_view(x, y):
    row = x[0]
    COPY(x, y)
    return (row * 2,)


def part_of_an_input(x, y):
    COPY(x[0], y)
    return (x * 2,)


def view_of_own_memory(x, y):
    made = torch.zeros_like(x)
    COPY(made.view(-1), y)
    return (made + 1,)


@pytest.mark.parametrize(
    ("function", "inputs", "said"),
    [
        (late_view, [rand(4, 4), rand(4, 4)], "a view of what was written into"),
        (part_of_an_input, [rand(4, 4), rand(4)], "a view"),
        (view_of_own_memory, [rand(4, 4), rand(16)], "a view"),
    ],
)
def test_writes_that_only_eager_can_order_are_declined(function, inputs, said):
    answer = refused(function, inputs)
    assert answer is not None
    assert answer.code == "effect"
    assert said in answer.detail


def test_views_that_nobody_reads_later_are_fine():
    assert refused(lambda x, y: (x[0] * 2, COPY(x, y)), [rand(4, 4), rand(4, 4)]) is None


def test_memory_that_elements_share_is_refused():
    region, _ = traced(lambda x, y: COPY(x, y), [rand(4), rand(4)])
    (view,) = region.views
    assert judge_op(view) == Supported()
    region, _ = traced(lambda x, y: COPY(x, y), [rand(1).expand(4), rand(4)])
    answer = judge_op(region.views[0])
    assert isinstance(answer, Unsupported)
    assert answer.code == "layout"


def placed_graph(name: str) -> StageGraph:
    region, _ = traced(*CASES[name])
    return place_writes(simplify(lower_region(region), {})[0])


def test_a_late_read_is_found_in_stages():
    graph = placed_graph("x backwards")
    with pytest.raises(IrError, match="arg0_1 is read after it was written into"):
        check_stages(replace(graph, stages=(graph.stages[-1], *graph.stages[:-1])))


def test_two_writes_into_one_input_are_found():
    graph = placed_graph("swap")
    outputs = [replace(item, destination="arg0_1") if item.name == "arg1_1" else item for item in graph.outputs]
    with pytest.raises(IrError, match="two tensors are written into one input"):
        check_stages(replace(graph, outputs=tuple(outputs)))


def test_a_late_read_is_found_in_groups():
    graph = placed_graph("x backwards")
    apart = [Group((), (stage,), frozenset()) for stage in graph.stages]
    check_groups(graph, apart)
    late = [*apart[1:], apart[0]]
    with pytest.raises(IrError, match="reads arg0_1, which is written into"):
        check_groups(graph, late)


def test_a_program_writes_only_what_it_says():
    program = check(*CASES["f(x)"])
    with pytest.raises(IrError, match="the input arg0_1 is written"):
        check_program(replace(program, written=()))


def test_the_text_says_what_is_written():
    region, _ = traced(*CASES["f(x)"])
    assert "into arg0_1 = arg0_1.new strides [1]" in str(lower_region(region))
    assert "written arg0_1" in str(check(*CASES["f(x)"]))
