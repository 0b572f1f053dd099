"""Artifacts of regions: complete, versioned, and loaded without the code generator."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mixbackend
from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.artifact import RegionArtifact
from mixbackend.backends.codegen.call_table import CallTable, TabledCall
from mixbackend.backends.codegen.lower import table
from mixbackend.backends.codegen.schedule import schedule as scheduling
from mixbackend.contracts import CodegenError
from mixbackend.graph.trace import trace_region

TABLE = CallTable(2, 3, (torch.float32, torch.bool), (TabledCall(0, (0, 3), 1, 0), TabledCall(1, (3, 4, 2), 0, 2)))


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps of the code generator that ran."""
    ran: list[str] = []

    def count(module: Any, name: str) -> None:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *arguments: (ran.append(name), real(*arguments))[1])

    count(table, "lower_region")
    count(scheduling, "schedule")
    return ran


def _normalised(x: Tensor) -> Tensor:
    return torch.softmax(x.t() * 2, -1) - x.mean()


def _updated(x: Tensor, state: Tensor) -> Tensor:
    state.mul_(0.5)
    return x + state


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_loaded_region_is_neither_lowered_nor_scheduled(dynamic: bool, generated: list[str]) -> None:
    backend = CodegenBackend()
    x = torch.randn(6, 33)
    region = trace_region(_normalised, [x], dynamic=dynamic)
    made = backend.compile(region)
    assert generated == ["lower_region", "schedule"] and made.artifact is not None
    generated.clear()
    loaded = CodegenBackend().load(region, made.artifact)
    assert generated == [] and loaded.source == made.source and loaded.strides == made.strides
    arguments = [x if item.name.startswith("arg") else item.meta.hint for item in region.inputs]
    (expected,), (result,) = made.run(arguments), loaded.run(arguments)
    assert torch.equal(result, expected) and result.stride() == expected.stride()
    torch.testing.assert_close(result, _normalised(x))


def test_a_second_mixture_generates_nothing(tmp_path: Path, generated: list[str]) -> None:
    function: Callable[[Tensor, Tensor], Tensor] = _updated
    configuration = {"backends": ["codegen", "eager"], "cache": {"dir": str(tmp_path)}, "on_failure": "raise"}
    configuration["rules"] = [{"match": {"op": "aten.add"}, "require": "codegen"}]
    counts = []
    for _ in range(2):
        torch._dynamo.reset()
        generated.clear()
        x, state, expected = torch.ones(40), torch.full((40,), 4.0), torch.full((40,), 2.0)
        result = torch.compile(function, backend=mixbackend.auto(configuration))(x, state)
        assert torch.equal(result, x + expected) and torch.equal(state, expected)
        counts.append(generated.count("lower_region"))
    assert counts[0] > 0 and counts[1] == 0


def test_loading_imports_neither_lowering_nor_scheduling_nor_the_printer() -> None:
    program = """
import sys, torch
from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.artifact import RegionArtifact
backend = CodegenBackend()
backend.availability()
assert backend.target.fingerprint()
RegionArtifact.from_bytes(b'{"format": "codegen region 4", "runner": "", "calls": '
    b'{"kernels": 0, "tensors": 0, "pieces": [], "calls": [], "telling": null}, "size": 0, "places": [], "bound": ""}')
parts = ("lower", "schedule", "interpret", "ir.program", "ir.kernel", "runner_text", "targets.cpp.printer")
print([part for part in parts if f"mixbackend.backends.codegen.{part}" in sys.modules])
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_an_artifact_is_read_as_it_was_written() -> None:
    artifact = RegionArtifact("def run(inputs):\n    return []\n", TABLE, b"\n\x00machine code\n{}")
    assert RegionArtifact.from_bytes(artifact.to_bytes()) == artifact


def test_bytes_of_another_format_are_refused() -> None:
    content = RegionArtifact("", TABLE, b"code").to_bytes()
    with pytest.raises(CodegenError, match="instead of"):
        RegionArtifact.from_bytes(content.replace(b"codegen region 4", b"codegen region 0"))
    kernels_alone = zlib.compress(json.dumps({"keys": [], "objects": [], "source": ""}).encode())
    for broken in (kernels_alone, b"", b"[]\n", b"{}\n", content[:40]):
        with pytest.raises(CodegenError, match="cannot be read"):
            RegionArtifact.from_bytes(broken)


@pytest.mark.parametrize(
    "change",
    [
        {"calls": [[2, [0], 0, 0]]},
        {"calls": [[0, [5], 0, 0]]},
        {"calls": [[0, [-1], 0, 0]]},
        {"calls": [[0, [0], -1, 0]]},
        {"calls": [[0, [0], 0]]},
        {"calls": [["0", [0], 0, 0]]},
        {"pieces": ["nothing"]},
        {"pieces": ["Tensor"]},
        {"kernels": None},
        {"telling": 3},
    ],
)
def test_tables_that_could_not_run_are_refused(change: dict[str, Any]) -> None:
    assert CallTable.from_json(json.loads(json.dumps(TABLE.to_json()))) == TABLE
    with pytest.raises(ValueError, match="not a call table"):
        CallTable.from_json(TABLE.to_json() | change)
