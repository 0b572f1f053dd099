"""Regions that draw random numbers, asked by ``triton_answers``: what differs from the interpreter of stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

Function = Callable[[torch.Tensor], Any]

STATE = (torch.tensor([-(1 << 62) + 5]), torch.tensor([(1 << 34) - 8]))
"""A seed that needs 64 bits, and an offset that passes 32 of them."""


def residual(x: torch.Tensor) -> Any:
    """As a transformer's layer ends: dropout, a residual, a norm. Results are in the order of a region's."""
    value, mask = torch.native_dropout(F.gelu(x), 0.1, True)
    return mask, F.layer_norm(value + x, (x.shape[-1],))


DRAWS: dict[str, tuple[Function, tuple[int, ...], torch.dtype]] = {
    "fours": (lambda x: torch.native_dropout(x, 0.5, True), (6, 36), torch.float32),
    "eights": (lambda x: torch.native_dropout(x, 0.5, True), (6, 40), torch.float16),
    "eights_in_rows": (residual, (5, 80), torch.float16),
    "fours_in_rows": (residual, (5, 60), torch.float32),
    "pairs": (lambda x: torch.native_dropout(x, 0.5, True), (5, 6), torch.bfloat16),
    "one_by_one": (lambda x: torch.native_dropout(x, 0.5, True), (5, 7), torch.float32),
    "several_turns": (lambda x: torch.native_dropout(x, 0.5, True), (40, 250), torch.float32),
    "numbers": (lambda x: (torch.rand_like(x), torch.bernoulli(x, 0.3)), (37, 29), torch.float16),
    "columns": (lambda x: torch.native_dropout(x, 0.5, True)[0].t().contiguous(), (36, 64), torch.float32),
}


def answer(name: str) -> dict[str, Any]:
    """One of them."""
    from triton_interpreter import DrawingTarget

    from mixbackend.backends.codegen import runner
    from mixbackend.backends.codegen.backend import CodegenBackend
    from mixbackend.backends.codegen.interpret.stages import interpret_stages
    from mixbackend.backends.codegen.lower.table import lower_region
    from mixbackend.graph.trace import trace_region

    asked: list[int] = []
    backend = CodegenBackend(DrawingTarget())
    function, shape, dtype = DRAWS[name]
    torch.manual_seed(1)
    x = torch.randn(shape).to(dtype)
    region = trace_region(function, [x])
    refused = [str(view.op) for view in region.views if "Unsupported" in str(backend.judge(view))]
    graph = lower_region(region, DrawingTarget.THREADS)
    expected = interpret_stages(graph, [x, *STATE])
    with mock.patch.object(runner, "take_random_state", lambda device, amount: asked.append(amount) or STATE):
        compiled = backend.compile(region)
        results = compiled.run([x])
    wrong = []
    for place, (mine, theirs) in enumerate(zip(results, expected, strict=True)):
        apart = 0.0 if mine.dtype == torch.bool or name == "numbers" else 3e-3
        near = torch.allclose(mine.float(), theirs.float(), atol=apart, rtol=apart)
        wrong += [] if near else [place]
    line = {"refused": refused, "wrong": wrong, "asked": asked[-1], "draws": int(graph.draws)}
    return {**line, "together": "uniform_of_fours" in compiled.source}
