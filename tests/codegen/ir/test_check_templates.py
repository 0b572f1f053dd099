"""One broken template per rule, among stages and as a kernel; text of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch

from mixbackend.backends.codegen.ir.check import check_stages
from mixbackend.backends.codegen.ir.check_templates import check_template_kernel
from mixbackend.backends.codegen.ir.indices import FloorDiv
from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.backends.codegen.ir.scalar import Constant, Local
from mixbackend.backends.codegen.ir.stages import StageGraph, Template
from mixbackend.backends.codegen.ir.templates import RESULT, other
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.layout import choose_layouts
from mixbackend.backends.codegen.schedule.templates import canonical_template, template_kernel
from mixbackend.contracts import IrError
from mixbackend.graph.trace import trace_region

attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
OPTIONS = "causal = False, scale = 0.5, zeros = True"
GRAPH = lower_region(trace_region(lambda x: attention(x, x, x, scale=0.5), [torch.randn(2, 3, 5, 8)]))
STAGE = next(stage for stage in GRAPH.stages if isinstance(stage, Template))
QUERY, OUTPUT = STAGE.operands[0], STAGE.results[0]
KERNEL = canonical_template(template_kernel(STAGE, choose_layouts(GRAPH))).kernel
assert QUERY is not None and isinstance(KERNEL, TemplateKernel)
VIEW = KERNEL.operands[0]
assert VIEW is not None


def graph_with(**changes: Any) -> StageGraph:
    stages = tuple(replace(stage, **changes) if stage is STAGE else stage for stage in GRAPH.stages)
    return replace(GRAPH, stages=stages)


def test_sound_ones_pass_and_are_printed() -> None:
    check_stages(GRAPH)
    check_template_kernel(KERNEL)
    assert str(STAGE).splitlines() == [
        f"template attention({OPTIONS})  # from _scaled_dot_product_flash_attention_for_cpu",
        "    [i0<2, i1<3, i2<5, i3<8] from arg0_1[i0, i1, i2, i3]",
        "    [i4<2, i5<3, i6<5, i7<8] from arg0_1[i4, i5, i6, i7]",
        "    [i8<2, i9<3, i10<5, i11<8] from arg0_1[i8, i9, i10, i11]",
        "    nothing",
        "    [i12<2, i13<3, i14<5, i15<8] to _scaled_dot_product_flash_attention_for_cpu[i12, i13, i14, i15]",
        "    [i16<2, i17<3, i18<5] to _scaled_dot_product_flash_attention_for_cpu.1[i16, i17, i18]",
    ]
    assert str(VIEW) == "b0 as [p0, p1, p2, p3] strides [p4, p5, p6, p7] offset p8"
    lines = str(KERNEL).splitlines()
    assert lines[5:8] == [
        "    write b4: f32",
        f"    template attention({OPTIONS})",
        f"    from {VIEW}",
    ]
    assert lines[10] == "    from nothing"


def shifted(**changes: Any) -> tuple[Any, ...]:
    """The operands with another first one."""
    return (replace(QUERY, **changes), *STAGE.operands[1:])


INDEX = QUERY.value.index
STAGES = {
    "there is no template": {"name": "unknown"},
    "has the options": {"options": (("scale", 0.5),)},
    "has other operands and results": {"results": STAGE.results[:1]},
    "query is missing": {"operands": (None, *STAGE.operands[1:])},
    "query has 4 dimensions, not 3": {"operands": shifted(loops=QUERY.loops[:3])},
    "is no tensor in memory": {
        "operands": shifted(value=replace(QUERY.value, index=(FloorDiv(INDEX[0], sympy.Integer(2)), *INDEX[1:])))
    },
    "has 4 dimensions, it is read with 3": {"operands": shifted(value=replace(QUERY.value, index=INDEX[:3]))},
    "is read, and not defined before": {"operands": shifted(value=replace(QUERY.value, tensor="nowhere"))},
    "which is not linear": {
        "results": (replace(OUTPUT, index=(OUTPUT.index[0] ** 2, *OUTPUT.index[1:])), STAGE.results[1])
    },
    "has no type": {"results": (replace(OUTPUT, target="nobody"), STAGE.results[1])},
    "nothing is computed of what attention makes": {"finish": Constant(torch.float32, 1.0)},
    "is no operand": {"finish": Local(torch.float32, other(0))},
    "is computed of a result": {"finish": QUERY.value},
    "is used twice": {"operands": (QUERY, QUERY, *STAGE.operands[2:])},
}


@pytest.mark.parametrize("message", STAGES)
def test_broken_stages(message: str) -> None:
    with pytest.raises(IrError, match=message):
        check_stages(graph_with(**STAGES[message]))


def test_a_masked_operand_is_no_tensor() -> None:
    hidden = replace(QUERY.value, mask=Constant(torch.bool, True), other=0.0)
    with pytest.raises(IrError, match="is no tensor in memory"):
        check_stages(graph_with(operands=shifted(value=hidden)))


KERNELS = {
    "there is no template": {"name": "unknown"},
    "output has 4 dimensions": {"results": (replace(VIEW, buffer="b3", sizes=VIEW.sizes[:3]), KERNEL.results[1])},
    "two parameters have one name": {"parameters": (*KERNEL.parameters, KERNEL.parameters[0])},
    "one buffer for every view": {"buffers": KERNEL.buffers[1:]},
    "is there to read": {"buffers": (replace(KERNEL.buffers[0], access="write"), *KERNEL.buffers[1:])},
    "as many strides as sizes": {"operands": (replace(VIEW, strides=VIEW.strides[:2]), *KERNEL.operands[1:])},
    "is not known here": {"operands": (replace(VIEW, offset=sympy.Symbol("far", integer=True)), *KERNEL.operands[1:])},
    "nothing is computed of what attention makes": {"finish": Local(torch.float32, RESULT)},
    "a template has no numbers": {"numbers": (sympy.Symbol("n"),)},
}


@pytest.mark.parametrize("message", KERNELS)
def test_broken_kernels(message: str) -> None:
    with pytest.raises(IrError, match=message):
        check_template_kernel(replace(KERNEL, **KERNELS[message]))
