"""Every entry of the shared lowering table that TensorRT takes, as an engine of the stand-in, against eager."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from mixbackend.contracts import InputRole, Unsupported
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.regions import whole_region
from mixbackend.graph.trace import trace_graph

from .conftest import NEWEST, OLDEST, close, given

_SAMPLES = Path(__file__).parents[1] / "onnxruntime" / "test_table.py"
_TYPES = {OLDEST: (torch.float32, torch.float16, torch.int32), NEWEST: (torch.float16, torch.int64, torch.bool)}
_PARTS = 4


def _samples() -> Any:
    spec = importlib.util.spec_from_file_location("table_samples", _SAMPLES)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SAMPLES = _samples()


def _checked(made: Any, name: str, dtype: torch.dtype, sample: Any) -> str:
    """``refused``, ``right`` or what is wrong."""
    make, keywords = sample
    data = SAMPLES.Data(dtype)
    named = {"own": dtype, "masked": SAMPLES._MASKED(SAMPLES.Data(dtype))}
    keywords = {key: named.get(value, value) for key, value in keywords.items()}
    try:
        function, tensors = SAMPLES._bound(name, make(data), keywords)
        eager = function(*tensors)
        # Weights of convolutions and batch norms must be known; whatever follows the first argument stands for them.
        roles = {place: PlaceholderRole(InputRole.CONSTANT) for place in range(1, len(tensors))}
        module, graph = trace_graph(function, tensors, roles=roles)
    except (RuntimeError, TypeError, ValueError):
        return "refused"  # by eager itself
    verdicts = [made.backend.judge(graph.view(node.name)) for node in graph.placed_nodes]
    if any(isinstance(verdict, Unsupported) for verdict in verdicts):
        return "refused"
    region = whole_region(module, graph)
    metas = [item.meta for item in (*region.inputs, *region.outputs)]
    if any(meta.dtype is torch.bfloat16 for meta in metas):
        return "no kernel of the stand-in: bfloat16"
    compiled = made.backend.compile(region)
    try:
        results = compiled.run(given(region, tensors))
    except (runtime.NotImplemented, runtime.RuntimeException) as error:
        return f"no kernel of the stand-in: {error}"
    except runtime.InvalidGraph as error:
        return f"{name} {dtype}: {error}"
    by_name = dict(zip((item.name for item in region.outputs), results, strict=True))
    listed = [item for item in (eager if isinstance(eager, (tuple, list)) else [eager]) if item is not None]
    names = [node.name for node in module.graph.output_node().args[0] if node is not None]
    for output, wanted in zip(names, listed, strict=True):
        odd = ~torch.isfinite(wanted) if wanted.is_floating_point() else torch.zeros_like(wanted, dtype=torch.bool)
        actual = by_name[output]
        same = torch.equal(torch.nan_to_num(actual[odd]), torch.nan_to_num(wanted[odd]))
        if not same or not close(actual.masked_fill(odd, 0), wanted.masked_fill(odd, 0)):
            return f"{name} {dtype}: {actual} instead of {wanted}"
    return "right"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_entries_agree_with_eager(bench, release, part) -> None:
    made = bench(release)
    found = [
        _checked(made, name, dtype, sample)
        for name in sorted(SAMPLES.CASES)[part::_PARTS]
        for dtype in _TYPES[release]
        for sample in SAMPLES.CASES[name]
    ]
    wrong = [item for item in found if item not in ("refused", "right") and not item.startswith("no kernel")]
    assert not wrong, "\n".join(wrong)
    assert found.count("right") > 20
