"""What the code computes from constants alone is one number in the graph, with eager's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.constants.known_values import applies, write_known_values
from mixbackend.graph.normalize import normalize

aten = torch.ops.aten


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    module = make_fx(torch.func.functionalize(function))(*inputs)
    module.graph.eliminate_dead_code()
    return module


def targets(module: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def check(function: Callable[..., Any], *inputs: torch.Tensor, whole: bool = False) -> tuple[int, torch.fx.GraphModule]:
    """Rewrites, all passes of a captured graph if ``whole``; nothing of the result may differ."""
    module = traced(function, *inputs)
    expected, holds = module(*inputs), applies(module)
    count = write_known_values(module)
    assert holds or not count
    if whole:
        normalize(module)
    module.graph.lint()
    module.recompile()
    for result, other in zip(module(*inputs), expected, strict=True):
        assert result.dtype == other.dtype
        torch.testing.assert_close(result, other, rtol=0.0, atol=0.0, equal_nan=True)
    return count, module


def scale(size: int) -> torch.Tensor:
    return torch.sqrt(torch.tensor(size, dtype=torch.float) * 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_scale_is_an_operand(dtype: torch.dtype) -> None:
    count, module = check(lambda x: (x / scale(64).to(dtype),), torch.randn(4, 4, dtype=dtype), whole=True)
    assert count == 1 and targets(module) == [aten.div.Tensor]
    (node,) = module.graph.find_nodes(op="call_function", target=aten.div.Tensor)
    assert node.args[1] == torch.tensor(192.0).sqrt().to(dtype).item()


DTYPES = (torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
STEPS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.sqrt,
    torch.exp,
    torch.neg,
    torch.log1p,
    torch.sin,
    lambda value: value * 3,
    lambda value: value / 7,
    lambda value: value - torch.full((), 0.3),
    lambda value: value.reshape(1),
    lambda value: (torch.arange(5) * value).sum(),
    *(lambda value, dtype=dtype: value.to(dtype) for dtype in DTYPES),
)


@given(
    st.floats(-100.0, 100.0, width=32),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.lists(st.sampled_from(STEPS), min_size=1, max_size=5),
)
def test_chains_of_constants_give_the_bits_of_eager(
    number: float, held: torch.dtype, dtype: torch.dtype, steps: list[Callable[[torch.Tensor], torch.Tensor]]
) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value = torch.tensor(number).to(held)
        for step in steps:
            value = step(value)
        return x * value, x + value, torch.where(x > value, x, value), value / x

    check(function, torch.linspace(-2, 2, 67).to(dtype), whole=True)


def on_a_gpu(function: Callable[..., Any], dtype: torch.dtype = torch.float32) -> torch.fx.GraphModule:
    with fresh_fake_mode():
        value = torch.empty(4, 4, device="cuda", dtype=dtype)
    module = make_fx(function, tracing_mode="fake")(value)
    assert any(device == "cpu" for device in devices(module))
    normalize(module)
    module.graph.lint()
    return module


def devices(module: torch.fx.GraphModule) -> list[str]:
    return [node.meta["val"].device.type for node in module.graph.nodes if node.op == "call_function"]


GPU_GRAPHS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "divided": lambda x: x / scale(64).to(x.dtype),
    "divided by another type": lambda x: x / scale(64),
    "wider": lambda x: x * torch.tensor(0.1, dtype=torch.float64).exp(),
    "from the left": lambda x: scale(64) * x + (scale(2) - x) / (scale(3) / x),
    "compared": lambda x: torch.where(x > scale(3), x, 0.0),
    "masked": lambda x: x.masked_fill(x > 0, scale(3)),
    "chosen": lambda x: torch.where(x > 0, scale(2) / scale(1), x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", GPU_GRAPHS)
def test_no_op_of_the_processor_is_left_in_a_graph_of_a_gpu(name: str, dtype: torch.dtype) -> None:
    module = on_a_gpu(GPU_GRAPHS[name], dtype)
    assert set(devices(module)) == {"cuda"}
    assert not module.graph.find_nodes(op="get_attr")


def test_a_copy_to_a_gpu_is_made_there() -> None:
    with fresh_fake_mode() as mode:
        value = torch.empty(4, 4, device="cuda")
    module = make_fx(lambda x: x + scale(64).to(torch.float16), tracing_mode="fake")(value)
    (copy,) = module.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    copy.kwargs = {**copy.kwargs, "device": torch.device("cuda")}
    with mode:
        copy.meta["val"] = torch.empty((), device="cuda", dtype=torch.float16)
    normalize(module)
    assert targets(module) == [aten.full.default, aten.add.Tensor]
    assert copy.args == ([], torch.tensor(192.0).sqrt().half().item()) and copy.kwargs["device"].type == "cuda"


def test_values_of_inputs_random_numbers_and_empty_memory_stay() -> None:
    count, _ = check(lambda x: (x * (x.sum() * torch.tensor(2.0)),), torch.ones(3))
    assert count == 0
    for function in (lambda x: x * (torch.rand(()) * 0), lambda x: x * (torch.empty(()) * 0)):
        module = traced(function, torch.ones(3))
        assert not applies(module) and write_known_values(module) == 0


def test_memory_that_is_written_into_stays() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        held = torch.tensor([1.0]) * 2
        aten.add_.Tensor(held.view(()), x[0])
        return (x * (held * 3),)

    module = make_fx(function)(torch.ones(3))
    assert write_known_values(module) == 0
    assert torch.equal(module(torch.ones(3))[0], torch.full((3,), 9.0))


def test_results_of_a_graph_are_made_as_traced() -> None:
    count, _ = check(lambda x: (x + 1, torch.tensor(2.0) * 3), torch.ones(2))
    assert count == 0


def test_values_with_several_elements_stay() -> None:
    count, _ = check(lambda x: (x + torch.arange(4) * 2,), torch.ones(4))
    assert count == 0


def test_what_eager_refuses_stays() -> None:
    module = make_fx(lambda x: x * torch.tensor(4).floor_divide(torch.tensor(2)))(torch.ones(2))
    (node,) = module.graph.find_nodes(op="call_function", target=aten.floor_divide.default)
    node.args = (node.args[0], 0)
    assert write_known_values(module) == 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        module.recompile()
        module(torch.ones(2))


def test_a_backward_reads_no_number_that_its_forward_saved(make_mixture: Any, loopback: Any) -> None:
    """The quotient's gradient reads the scale; a sum is not computed again in the backward."""
    mixture = make_mixture(loopback)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x / torch.arange(64.0).sum().sqrt().to(x.dtype))

    found, expected = (torch.linspace(-2, 2, 64).bfloat16().requires_grad_() for _ in range(2))
    torch.compile(function, backend=mixture)(found).sum().backward()
    function(expected).sum().backward()
    assert torch.equal(found.grad, expected.grad)  # type: ignore[arg-type]
    assert mixture.report().events == ()
    forward, backward = mixture.report().to_dict()["graphs"]
    ops = [op for graph in (forward, backward) for region in graph["regions"] for op in region["ops"]]
    assert {"aten.sin.default", "aten.cos.default", "aten.div.Tensor"} <= set(ops)
    assert not {"aten.arange.default", "aten.sum.default", "aten.sqrt.default"} & set(ops)
