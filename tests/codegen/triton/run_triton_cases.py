"""Cases of ``triton_cases`` held against eager: asked by ``triton_answers`` under the interpreter, and on a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from triton_cases import CASES, inputs_of

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.contracts import ErrorBudget, Region, Supported, TensorMeta
from mixbackend.contracts.numerics import find_deviation
from mixbackend.execute.verify import eager_result, reference_result
from mixbackend.graph.trace import trace_region

BUDGET = ErrorBudget(factor=4.0, floor=64.0)
"""What the backend promises."""


def answer(name: str, dtype: str, tight: bool = False) -> dict[str, Any]:
    """``run_case`` by the interpreter; ``tight`` walks rows in pieces, because blocks hold so little."""
    from triton_interpreter import InterpretedTarget

    (kind,) = [kind for kind in CASES[name].dtypes if str(kind) == dtype]
    if not tight:
        return run_case(CodegenBackend(InterpretedTarget()), name, kind, "cpu")
    with _tightened():
        return run_case(CodegenBackend(InterpretedTarget()), name, kind, "cpu")


@contextmanager
def _tightened() -> Iterator[None]:
    from mixbackend.backends.codegen.targets.triton import plan, target

    limits = {"RESIDENT": 32, "ONCE": 32, "PIECE": 16, "COLUMN_PIECE": 8, "COLUMNS": 4, "FEW": 1}
    usual, blocks = {name: getattr(plan, name) for name in limits}, target.BLOCKS
    target.BLOCKS = replace(blocks, resident=32)
    vars(plan).update(limits)
    try:
        yield
    finally:
        target.BLOCKS = blocks
        vars(plan).update(usual)


def run_case(backend: CodegenBackend, name: str, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Compile and run a case: its deviations from eager, outputs in other layouts, and the number of kernels."""
    case = CASES[name]
    inputs = [value.to(device) for value in inputs_of(name, dtype)]
    region = trace_region(case.function, inputs, dynamic=case.dynamic)
    refused = [f"{view.op}: {backend.judge(view)}" for view in region.views if backend.judge(view) != Supported()]
    if refused:
        return {"refused": refused}
    arguments = arguments_of(region, inputs)
    compiled = backend.compile(region)
    results = compiled.run(arguments)
    eager = eager_result(region, arguments)
    exact = reference_result(region, arguments, eager)
    found = [
        find_deviation(place, *values, BUDGET) for place, values in enumerate(zip(results, eager, exact, strict=True))
    ]
    strides = [place for place, (mine, theirs) in enumerate(zip(results, eager, strict=True)) if _differ(mine, theirs)]
    return {
        "deviations": [str(item) for item in found if item is not None],
        "strides": strides,
        "kernels": len(backend.program(region).calls),
    }


def _differ(mine: torch.Tensor, eager: torch.Tensor) -> bool:
    sizes = zip(mine.shape, mine.stride(), eager.stride(), strict=True)
    return mine.shape != eager.shape or (mine.numel() > 0 and any(size > 1 and a != b for size, a, b in sizes))


def arguments_of(region: Region, inputs: list[torch.Tensor]) -> list[Any]:
    """What a region is called with."""
    places = [re.fullmatch(r"arg(\d+)_\d+", item.name) for item in region.inputs]
    return [
        inputs[int(place[1])] if isinstance(item.meta, TensorMeta) and place else item.meta.hint
        for item, place in zip(region.inputs, places, strict=True)
    ]
