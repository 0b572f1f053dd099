"""Generated kernels on a GPU: the whole table, streams, threads, graphs, memory that is not aligned, large tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from region_arguments import arguments
from run_triton_cases import run_case
from triton_cases import CASES

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.graph.trace import trace_region

pytestmark = pytest.mark.gpu
KEYS = [(name, dtype) for name, case in CASES.items() for dtype in case.dtypes]


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")


@lru_cache(maxsize=1)
def backend() -> CodegenBackend:
    return CodegenBackend()


def compiled(function: Callable[..., Any], inputs: Sequence[torch.Tensor], dynamic: bool = False) -> Any:
    """The run function; inputs are used in their order."""
    return backend().compile(trace_region(function, inputs, dynamic=dynamic)).run


@pytest.mark.parametrize(("name", "dtype"), KEYS, ids=lambda value: str(value).removeprefix("torch."))
def test_pattern_on_the_gpu(name: str, dtype: torch.dtype) -> None:
    answer = run_case(backend(), name, dtype, "cuda")
    assert answer.get("refused") is None, answer["refused"]
    assert answer["deviations"] == [] and answer["strides"] == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("positions", "width"), [(1, 64), (200, 80), (1024, 64), (5000, 128)])
def test_attention_of_one_row(positions: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, mask = torch.randn(2, 8, 1, width), torch.zeros(1, 1, 1, positions)
    keys, values = (torch.randn(2, 2, positions, width) for _ in range(2))
    mask[..., max(1, positions // 3) :] = float("-inf")
    given = [value.to("cuda", dtype) for value in (query, keys, values, mask)]

    def many(x: torch.Tensor) -> torch.Tensor:
        return x[:, :, None].expand(-1, -1, 4, -1, -1).reshape(2, 8, positions, width)

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        bias = m.expand(2, 8, 1, positions)
        return torch.ops.aten._scaled_dot_product_cudnn_attention(q, many(k), many(v), bias, False)[0]

    region = trace_region(step, given)
    (result,) = backend().compile(region).run(arguments(region, given))
    q, k, v, m = (value.double() for value in given)
    exact = torch.nn.functional.scaled_dot_product_attention(q, many(k), many(v), m)
    assert float((result.double() - exact).abs().max()) <= float(exact.abs().max()) * torch.finfo(dtype).eps


def test_kernels_run_on_the_current_stream() -> None:
    x = torch.zeros(1 << 24, device="cuda")
    run = compiled(lambda x: x * 2 + 1, [x])
    run([x])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(3.0)
        (result,) = run([x])
    stream.synchronize()
    assert bool((result == 7).all())


def test_a_thread_that_never_used_the_gpu() -> None:
    x = torch.randn(1000, device="cuda")
    run = compiled(lambda x: x.exp() + 1, [x])
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.extend(run([x])))
    thread.start()
    thread.join()
    torch.testing.assert_close(results[0], x.exp() + 1)


def test_a_cuda_graph_replays_them() -> None:
    x, w = torch.randn(64, 512, device="cuda"), torch.randn(512, device="cuda")
    run = compiled(lambda x, w: torch.softmax(x * w, -1).sum(0), [x, w])
    run([x, w])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (result,) = run([x, w])
    x.copy_(torch.randn(64, 512, device="cuda"))
    graph.replay()
    torch.testing.assert_close(result, torch.softmax(x * w, -1).sum(0))


def test_memory_that_begins_anywhere() -> None:
    whole = torch.randn(4097, device="cuda")
    run = compiled(lambda x: torch.tanh(x) * 2, [whole[:4096]])
    for start in (0, 1):
        torch.testing.assert_close(run([whole[start : start + 4096]])[0], torch.tanh(whole[start : start + 4096]) * 2)


def test_more_elements_than_32_bits_count() -> None:
    x = torch.zeros(3, (1 << 30) + 5, dtype=torch.int8, device="cuda")
    x[2, -3:] = 7
    (result,) = compiled(lambda x: x + 1, [x])([x])
    assert result[2, -4:].tolist() == [1, 8, 8, 8] and int(result[1].max()) == 1


def test_one_code_for_all_sizes() -> None:
    region = trace_region(lambda x: torch.softmax(x, -1), [torch.randn(5, 77, device="cuda")], dynamic=True)
    run = backend().compile(region).run
    for rows, columns in ((5, 77), (3, 1000), (700, 2050)):
        x = torch.randn(rows, columns, device="cuda")
        torch.testing.assert_close(run(arguments(region, [x]))[0], torch.softmax(x, -1))
