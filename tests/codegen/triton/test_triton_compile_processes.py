"""Kernels are compiled in torch's processes where those are ready: the same code, each kernel once."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from mixbackend.backends.codegen.targets.triton import compiler
from mixbackend.backends.codegen.targets.triton.machine_code import MachineCode, machine_code_apart, triton_environment
from mixbackend.backends.codegen.targets.triton.text import FUNCTION, Text
from mixbackend.contracts import CodegenError

ARCHITECTURE = compiler.Architecture("cuda", "90", 32)
CODE = MachineCode(b"code", FUNCTION, 0, 0)


def text_of(number: int, operator: str = "+") -> Text:
    body = f"""@triton.jit
def {FUNCTION}(x):
    place = tl.arange(0, 128)
    tl.store(x + place, tl.load(x + place) {operator} {number})
"""
    return Text(body, (("x", "*fp32"),), 4)


@pytest.fixture
def orders(monkeypatch):
    """Processes that are ready; what was handed over."""
    handed: list = []

    def hand_over(function, order, environment):
        assert function is machine_code_apart
        handed.append(order)
        future: Future = Future()
        threading.Timer(0.05, future.set_result, [CODE]).start()
        return future

    compiler._compiled.cache_clear()
    monkeypatch.setattr(compiler, "compile_processes_ready", lambda: True)
    monkeypatch.setattr(compiler, "in_compile_process", hand_over)
    yield handed
    compiler._compiled.cache_clear()


def test_each_kernel_is_compiled_once(orders):
    texts = [text_of(1), text_of(2), text_of(1)]
    assert len(compiler.compile_texts(texts, ARCHITECTURE)) == 3
    compiler.compile_texts(texts, ARCHITECTURE)
    assert sorted(order.body for order in orders) == sorted({text.body for text in texts})


def test_regions_side_by_side_share_kernels(orders):
    threads = [threading.Thread(target=compiler.compile_texts, args=([text_of(3)], ARCHITECTURE)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(orders) == 1


def test_what_fails_apart_is_tried_here(orders, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("the process is gone")

    monkeypatch.setattr(compiler, "in_compile_process", fail)
    monkeypatch.setattr(compiler, "machine_code", lambda order: CODE)
    assert compiler.compile_texts([text_of(4)], ARCHITECTURE)[0].code == b"code"


def test_a_refusal_is_told_as_ever(orders, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(compiler, "in_compile_process", lambda *arguments: 1 / 0)
    with pytest.raises(CodegenError, match="Triton refused a kernel"):
        compiler.compile_texts([text_of(5, "no operator")], ARCHITECTURE)


def test_apart_is_compiled_as_triton_was_told_here(monkeypatch, tmp_path):
    """Another process that had other settings of Triton gives the same code, and keeps its settings."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "mine"))
    order = compiler.Order(text_of(6).body, text_of(6).signature, 4, 0, True, "cuda", 90, 32)
    expected = compiler.machine_code(order)
    asked = triton_environment()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "theirs"))
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    theirs = triton_environment()
    assert machine_code_apart(order, asked) == expected
    assert triton_environment() == theirs
    assert not (tmp_path / "theirs").exists()
