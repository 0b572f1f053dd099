"""Kits: objects of one toolchain are loaded without it, where the processor can run them and calls are alike."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

import pytest
import torch

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.targets.cpp.kit import Kit, instructions_here
from mixbackend.backends.codegen.targets.cpp.target import CppTarget
from mixbackend.contracts import CodegenError
from mixbackend.graph.trace import trace_region


@pytest.fixture(scope="module")
def kit() -> Kit:
    content = CodegenBackend().kit("cpu")
    assert content is not None
    return Kit.from_bytes(content)


def test_a_kit_comes_back(kit: Kit) -> None:
    assert Kit.from_bytes(kit.to_bytes()) == kit
    assert kit.machine == platform.machine() and kit.instructions == instructions_here() and kit.launcher_object


def test_a_region_is_loaded_without_the_compiler(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region = trace_region(lambda x, y: torch.tanh(x) * y + 1, [torch.randn(5, 7), torch.randn(7)])
    made = CodegenBackend().compile(region)
    assert made.artifact is not None
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    (tmp_path / "objects").mkdir(mode=0o700)
    loading = CodegenBackend(CppTarget(tmp_path / "objects").with_kit(kit.to_bytes()))
    assert loading.availability().available
    x, y = torch.randn(5, 7), torch.randn(7)
    torch.testing.assert_close(loading.load(region, made.artifact).run([x, y])[0], torch.tanh(x) * y + 1)
    with pytest.raises(CodegenError, match="only loads what was compiled elsewhere"):
        loading.compile(region)


def test_loading_is_alike_and_the_fingerprint_is_not(kit: Kit) -> None:
    own, loading = CodegenBackend(), CodegenBackend().with_kit(kit.to_bytes())
    assert own.loading("cpu") == loading.loading("cpu") and own.fingerprint() != loading.fingerprint()
    assert loading.kit("cpu") == kit.to_bytes() and loading.kit("cuda") is None


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"machine": "pdp11"}, "its code is for pdp11"),
        ({"instructions": frozenset({"avx4096"})}, "instructions that this processor lacks: avx4096"),
        ({"instructions": frozenset()}, "instructions that this processor lacks"),
        ({"launcher_key": "0" * 64}, "is called otherwise"),
        ({"launcher_object": b"nothing"}, ""),
    ],
)
def test_where_its_code_cannot_run_it_says_so(kit: Kit, tmp_path: Path, changed: dict[str, object], text: str) -> None:
    (tmp_path / "objects").mkdir(mode=0o700)
    other = dataclasses.replace(kit, **changed)
    answer = CppTarget(tmp_path / "objects", kit=other).availability()
    assert not answer.available and text in answer.reason


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format": 99}', b"\xff"])
def test_what_is_no_kit_is_refused(content: bytes) -> None:
    with pytest.raises(CodegenError, match="a kit of the C"):
        Kit.from_bytes(content)
