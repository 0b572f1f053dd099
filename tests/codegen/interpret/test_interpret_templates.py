"""The interpreter of templates: what it finds wrong, and that unknown ones are errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mixbackend.backends.codegen.interpret.templates import evaluate_template, interpret_template
from mixbackend.backends.codegen.ir.kernel import TemplateKernel
from mixbackend.backends.codegen.ir.stages import Template
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.layout import choose_layouts
from mixbackend.backends.codegen.schedule.templates import template_kernel
from mixbackend.contracts import IrError
from mixbackend.graph.trace import trace_region

attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _kernel() -> TemplateKernel:
    inputs = [torch.randn(1, 2, 3, 4) for _ in range(3)]
    graph = lower_region(trace_region(lambda q, k, v: attention(q, k, v), inputs))
    stage = next(stage for stage in graph.stages if isinstance(stage, Template))
    return template_kernel(stage, choose_layouts(graph))


def _memory(kernel: TemplateKernel) -> dict[str, torch.Tensor]:
    return {item.name: torch.randn(24) for item in kernel.buffers}


def test_views_stay_inside_their_buffers() -> None:
    kernel = _kernel()
    memory = _memory(kernel)
    interpret_template(kernel, memory, {})
    query = kernel.operands[0]
    assert query is not None
    for broken in (replace(query, offset=query.offset + 1), replace(query, offset=query.offset - 1)):
        with pytest.raises(IrError, match="reaches from"):
            interpret_template(replace(kernel, operands=(broken, *kernel.operands[1:])), memory, {})


def test_buffers_have_their_types() -> None:
    kernel = _kernel()
    memory = _memory(kernel)
    memory[kernel.buffers[1].name] = torch.randn(24).double()
    with pytest.raises(IrError, match=r"is of type torch\.float32, got torch\.float64"):
        interpret_template(kernel, memory, {})


def test_unknown_templates() -> None:
    with pytest.raises(IrError, match="there is no template nothing"):
        evaluate_template("nothing", (), ())


def test_attention_over_no_keys_is_zero() -> None:
    query, keys = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4)
    options = (("causal", False), ("scale", 1.0), ("zeros", True))
    output, logarithm = evaluate_template("attention", (query, keys, keys, None), options)
    assert output.shape == (1, 2, 3, 4) and not output.any() and logarithm.shape == (1, 2, 3) and not logarithm.any()
