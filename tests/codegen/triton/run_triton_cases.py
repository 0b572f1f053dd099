"""Runs the table of ``triton_cases`` and prints one JSON line per case, type and way: ``interpreter`` or ``gpu``.

A program of its own, since Triton's interpreter has to be chosen before Triton is imported. ``tight`` makes blocks hold
so little that rows of the table are walked in pieces, and computed again.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
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


def main(way: str, tight: bool, only: list[str]) -> None:
    """Run all cases, or those that are named."""
    backend = _backend(way)
    if tight:
        _tighten()
    for name, case in CASES.items():
        for dtype in case.dtypes if not only or name in only else ():
            started = time.perf_counter()
            try:
                answer = run_case(backend, name, dtype, "cuda" if way == "gpu" else "cpu")
            except Exception as error:  # reported as the case's result
                answer = {"error": f"{type(error).__name__}: {error}"}
            line = {"case": name, "dtype": str(dtype), "tight": tight, "seconds": time.perf_counter() - started}
            print(json.dumps({**line, **answer}), flush=True)


def _backend(way: str) -> CodegenBackend:
    if way == "gpu":
        return CodegenBackend()
    from triton_interpreter import InterpretedTarget

    return CodegenBackend(InterpretedTarget())


def _tighten() -> None:
    from mixbackend.backends.codegen.targets.triton import plan, target

    target.BLOCKS = replace(target.BLOCKS, resident=32)
    plan.RESIDENT, plan.ONCE, plan.PIECE, plan.COLUMN_PIECE, plan.COLUMNS, plan.FEW = 32, 32, 16, 8, 4, 1


def run_case(backend: CodegenBackend, name: str, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Compile and run a case: its deviations from eager, outputs in other layouts, and the number of kernels."""
    case = CASES[name]
    inputs = [value.to(device) for value in inputs_of(name, dtype)]
    region = trace_region(case.function, inputs, dynamic=case.dynamic)
    refused = [f"{view.op}: {backend.judge(view)}" for view in region.views if backend.judge(view) != Supported()]
    if refused:
        return {"refused": refused}
    arguments = _arguments(region, inputs)
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


def _arguments(region: Region, inputs: list[torch.Tensor]) -> list[Any]:
    places = [re.fullmatch(r"arg(\d+)_\d+", item.name) for item in region.inputs]
    return [
        inputs[int(place[1])] if isinstance(item.meta, TensorMeta) and place else item.meta.hint
        for item, place in zip(region.inputs, places, strict=True)
    ]


if __name__ == "__main__":
    if sys.argv[1] == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    main(sys.argv[1], "tight" in sys.argv[2:], [item for item in sys.argv[2:] if item != "tight"])
