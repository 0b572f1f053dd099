"""Templates among other stages: a kernel each, in place where a result is written into an input, never a nest."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from drawn_graphs import cpu_traits

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.ir.check import check_program
from mixbackend.backends.codegen.ir.indices import FloorDiv
from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.backends.codegen.ir.stages import StageGraph, Template
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.check_groups import check_groups
from mixbackend.backends.codegen.schedule.group import Group
from mixbackend.backends.codegen.schedule.grouping import group_stages
from mixbackend.backends.codegen.schedule.layout import choose_layouts
from mixbackend.backends.codegen.schedule.statements import draft_of
from mixbackend.backends.codegen.schedule.templates import template_kernel
from mixbackend.graph.trace import trace_region

attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
INPUTS = [torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


def _graph() -> tuple[StageGraph, Template]:
    def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.relu(attention(torch.relu(q), k, v)[0])

    graph = lower_region(trace_region(block, INPUTS))
    return graph, next(stage for stage in graph.stages if isinstance(stage, Template))


def test_a_template_is_a_group_of_its_own() -> None:
    graph, _ = _graph()
    groups, refusals = group_stages(graph, choose_layouts(graph), cpu_traits())
    check_groups(graph, groups)
    alone = [group for group in groups if any(isinstance(stage, Template) for stage in group.stages)]
    assert [len(group.stages) for group in alone] == [1] and alone[0].outer == () and refusals


def test_a_template_is_no_nest() -> None:
    graph, stage = _graph()
    with pytest.raises(ValueError, match="made by a template"):
        draft_of(Group((), (stage,), frozenset()), choose_layouts(graph))


def test_what_is_no_view_has_no_kernel() -> None:
    graph, stage = _graph()
    key = stage.operands[1]
    assert key is not None
    index = (*key.value.index[:3], FloorDiv(key.value.index[3], 2))
    broken = replace(
        stage, operands=(stage.operands[0], replace(key, value=replace(key.value, index=index)), None, None)
    )
    with pytest.raises(ValueError, match="is no view"):
        template_kernel(broken, choose_layouts(graph))


def test_results_are_written_into_inputs() -> None:
    region = trace_region(lambda x, k, v: x.copy_(attention(x * 2, k, v, scale=0.2)[0]), INPUTS)
    program = CodegenBackend().program(region)
    check_program(program)
    assert program.written == ("arg0_1",)
    (place,) = (place for place, call in enumerate(program.calls) if isinstance(call.kernel, TemplateKernel))
    assert program.calls[place].buffers[-1] == "arg0_1"
    given = [item.clone() for item in INPUTS]
    interpret_program(program, given)
    expected = attention(INPUTS[0] * 2, *INPUTS[1:], scale=0.2)[0]
    torch.testing.assert_close(given[0], expected)
    again = [item.clone() for item in INPUTS]
    CodegenBackend().compile(region).run(again)
    torch.testing.assert_close(again[0], expected)
