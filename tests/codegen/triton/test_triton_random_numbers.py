"""Random numbers in Triton kernels: interpreted, compiled ahead, and on a GPU the very ones that eager draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from run_triton_draws import DRAWS, residual
from triton_answers import Answers
from triton_programs import HARDWARE, SETTINGS, backend

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.targets.triton.printing import print_program
from mixbackend.graph.trace import trace_region

pytest.importorskip("triton", reason="Triton is not installed")

from mixbackend.backends.codegen.targets.triton.compiler import Architecture, compile_texts

AMPERE = Architecture("cuda", "80", 32)
TOGETHER = {"fours", "eights", "eights_in_rows", "fours_in_rows", "several_turns"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DRAWS)
def test_numbers_are_those_of_the_streams(answer: Answers, name: str) -> None:
    found = answer("run_triton_draws", name)
    assert found["refused"] == [] and found["wrong"] == []
    assert found["asked"] == found["draws"] > 0
    assert found["together"] or name not in TOGETHER


def _texts(name: str) -> Any:
    function, shape, dtype = DRAWS[name]
    program = backend().program(trace_region(function, [torch.zeros(shape, dtype=dtype)]))
    return print_program(program, SETTINGS).texts


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["eights_in_rows", "one_by_one", "numbers"])
@pytest.mark.parametrize("architecture", [AMPERE, HARDWARE.architecture], ids=["sm_80", "sm_90"])
def test_draws_have_machine_code(name: str, architecture: Architecture) -> None:
    for binary in compile_texts(_texts(name), architecture):
        assert binary.code.startswith(b"\x7fELF")


# -- on a GPU -----------------------------------------------------------------------------------------------------

Shape = tuple[int, ...]
ON_GPU: dict[str, tuple[Callable[[torch.Tensor], Any], Shape, torch.dtype]] = {
    **DRAWS,
    "large": (lambda x: torch.native_dropout(x, 0.1, True), (4096, 1024), torch.bfloat16),
    "large_fours": (lambda x: torch.native_dropout(x, 0.1, True), (4096, 1024), torch.float32),
    "large_odd": (lambda x: torch.native_dropout(x, 0.1, True), (4097, 1023), torch.float16),
    "large_numbers": (lambda x: (torch.rand_like(x), torch.bernoulli(x, 0.3)), (4096, 1024), torch.float32),
}


@pytest.fixture
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    return torch.device("cuda")


def _drawn(function: Callable[..., Any], *arguments: Any) -> tuple[list[torch.Tensor], int]:
    """Results from one seed, and the generator's offset after it."""
    torch.cuda.manual_seed(1234)
    torch.rand(7, device="cuda")
    results = function(*arguments)
    after = torch.cuda.default_generators[0].get_offset()
    return [results] if isinstance(results, torch.Tensor) else list(results), after


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_a_gpu_draws_what_eager_draws(name: str, gpu: torch.device) -> None:
    function, shape, dtype = ON_GPU[name]
    x = torch.randn(shape, device=gpu).to(dtype)
    run = CodegenBackend().compile(trace_region(function, [x])).run
    (eager, after), (mine, own_after) = _drawn(function, x), _drawn(run, [x])
    assert after == own_after
    for theirs, value in zip(eager, mine, strict=True):
        assert value.dtype == theirs.dtype
        if value.dtype == torch.bool or "numbers" in name:
            assert torch.equal(value, theirs)
        else:
            torch.testing.assert_close(value, theirs, atol=2e-2, rtol=2e-2)


@pytest.mark.gpu
def test_replays_of_a_cuda_graph_draw_what_eager_draws(gpu: torch.device) -> None:
    x = torch.randn(64, 768, device=gpu, dtype=torch.float16)
    run = CodegenBackend().compile(trace_region(residual, [x])).run
    run([x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mask, _ = run([x])
    for seed in (5, 6):
        torch.cuda.manual_seed(seed)
        expected = [residual(x)[0] for _ in range(2)]
        torch.cuda.manual_seed(seed)
        for theirs in expected:
            graph.replay()
            assert torch.equal(mask, theirs)


@pytest.mark.gpu
def test_a_forked_stream_is_drawn_from_again(gpu: torch.device) -> None:
    x = torch.ones(64, 64, device=gpu)
    run = CodegenBackend().compile(trace_region(lambda x: torch.rand_like(x) + x, [x])).run
    with torch.random.fork_rng([0]):
        first = run([x])[0]
    assert torch.equal(run([x])[0], first) and not torch.equal(run([x])[0], first)
