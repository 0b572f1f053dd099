"""What is written for TensorRT (operator set 17, halves as they are), run by ONNX Runtime, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention, softmax

from mixbackend.backends.common.onnx import LoweringError, lower_region
from mixbackend.backends.tensorrt.kernels import OPSET, target
from mixbackend.backends.tensorrt.versions import Release
from mixbackend.contracts import Region
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.regions import whole_region
from mixbackend.graph.trace import trace_graph

from .conftest import NEWEST, OLDEST, Bench, close, given

aten = torch.ops.aten
HALF, SINGLE = torch.float16, torch.float32


def _run(region: Region, values: list[Any], release: str) -> list[torch.Tensor]:
    lowered = lower_region(region, target(Release.of(release)))
    onnx.checker.check_model(lowered.model, full_check=True)
    assert lowered.model.opset_import[0].version == OPSET
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        lowered.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {name: value.numpy() for (name, _), value in zip(lowered.inputs, values, strict=True)}
    return [torch.from_numpy(item) for item in session.run(list(lowered.outputs), feeds)]


def _floats(*shapes: tuple[int, ...]) -> Callable[[torch.dtype], list[torch.Tensor]]:
    return lambda dtype: [torch.randn(shape).to(dtype) for shape in shapes]


CASES: dict[str, tuple[Callable[..., Any], Callable[[torch.dtype], list[torch.Tensor]]]] = {
    "gelu": (gelu, _floats((4, 33))),
    "gelu_tanh": (lambda x: gelu(x, approximate="tanh"), _floats((4, 33))),
    "amax": (lambda x: x.amax((0, 2)), _floats((3, 4, 5))),
    "amin_kept": (lambda x: x.amin(1, keepdim=True), _floats((3, 4, 5))),
    "mean": (lambda x: x.mean((2, 3)), _floats((2, 3, 4, 5))),
    "mean_of_all": (lambda x: x.mean(), _floats((2, 3))),
    "prod": (lambda x: x.prod(1), _floats((3, 4))),
    "var": (lambda x: x.var(1), _floats((3, 40))),
    "group_norm": (lambda x: torch.nn.functional.group_norm(x, 2), _floats((2, 4, 5, 5))),
    "layer_norm": (lambda x, w, b: layer_norm(x, (16,), w, b), _floats((3, 16), (16,), (16,))),
    "padded": (lambda x: torch.nn.functional.pad(x, (1, 2, 0, 3), value=0.5), _floats((2, 3, 4))),
    "cut_by_padding": (lambda x: torch.nn.functional.pad(x, (-1, 2)), _floats((2, 3, 4))),
    "softmax": (lambda x: softmax(x, -1), _floats((3, 4))),
    "log_softmax": (lambda x: torch.log_softmax(x, 0), _floats((3, 4))),
    "split": (lambda x: torch.split(x, [1, 3], 1), _floats((2, 4))),
    "attention": (lambda q, k, v: scaled_dot_product_attention(q, k, v), _floats(*[(2, 2, 8, 16)] * 3)),
    "causal": (lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), _floats(*[(2, 2, 8, 16)] * 3)),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), _floats((3, 4))),
}


@pytest.mark.sampled(18)
@pytest.mark.parametrize("release", [OLDEST, NEWEST])
@pytest.mark.parametrize("dtype", [SINGLE, HALF], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_operator_set_17_gives_eagers_results(stand_in, name, dtype, release) -> None:
    function, make = CASES[name]
    stand_in(release)
    torch.manual_seed(0)
    values = make(dtype)
    bench = Bench()
    assert not bench.refusals(function, values)
    region = bench.region(function, values)
    results = _run(region, given(region, values), release)
    expected = function(*values)
    listed = expected if isinstance(expected, (tuple, list)) else [expected]
    assert len(results) == len(listed)
    for actual, wanted in zip(results, listed, strict=True):
        assert close(actual, wanted)


def test_places_of_the_largest_are_whole_numbers_that_release_8_lacks(stand_in) -> None:
    values = [torch.randn(3, 4)]
    largest = lambda x: x.max(1)  # noqa: E731
    stand_in(OLDEST)
    assert Bench().refusals(largest, values)[0].detail.endswith("it computes int64 as int32")
    stand_in(NEWEST)
    region = Bench().region(largest, values)
    assert not Bench().refusals(largest, values)
    for actual, wanted in zip(_run(region, values, NEWEST), largest(*values), strict=True):
        assert close(actual, wanted)


def test_reductions_keep_their_axes_as_an_input_where_the_operator_set_has_them_so() -> None:
    region = Bench().region(lambda x: x.mean(1), [torch.randn(3, 4)])
    older = lower_region(region, target(Release.of(NEWEST))).model.graph.node
    assert [list(node.input) for node in older] == [["in0"]]
    assert [item.name for item in older[0].attribute] == ["axes", "keepdims"]


# --- attention of GPUs -----------------------------------------------------------------------------------------------

_HEADS = (2, 3, 8, 16)
ATTENTIONS: dict[str, Callable[..., Any]] = {
    "flash": lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False)[0],
    "flash_causal": lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=0.3)[0],
    "efficient": lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, False)[0],
    "efficient_masked": lambda q, k, v, m: aten._scaled_dot_product_efficient_attention(q, k, v, m, False)[0],
    "cudnn": lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, False, 0.0, True)[0],
}


def _of_gpu(function: Callable[..., Any], count: int, dtype: torch.dtype) -> Region:
    """A region of a GPU, which need not be here."""
    with fresh_fake_mode():
        shapes = [_HEADS] * 3 + [(2, 3, 8, 8)] * (count - 3)
        values = [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
    return whole_region(*trace_graph(function, values))


@pytest.mark.parametrize("dtype", [SINGLE, HALF], ids=str)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_of_gpus_is_the_formula(name, dtype) -> None:
    masked, causal = name.endswith("masked"), name in ("flash_causal", "cudnn")
    torch.manual_seed(0)
    query, key, value = (torch.randn(_HEADS).to(dtype) for _ in range(3))
    mask = torch.randn(2, 3, 8, 8).to(dtype) if masked else None
    if mask is not None:
        mask[0, 0, 2] = float("-inf")
    values = [query, key, value] + ([mask] if masked else [])
    region = _of_gpu(ATTENTIONS[name], len(values), dtype)
    (result,) = _run(region, given(region, values), NEWEST)
    scale = 0.3 if name == "flash_causal" else None
    expected = scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale)
    if masked:
        assert not result[0, 0, 2].any(), "a query that sees nothing gives zero"
        result[0, 0, 2], expected[0, 0, 2] = 0, 0
    assert close(result, expected)


def test_products_of_attention_stay_in_half_precision() -> None:
    region = _of_gpu(ATTENTIONS["flash"], 3, HALF)
    nodes = [node.op_type for node in lower_region(region, target(Release.of(NEWEST))).model.graph.node]
    assert nodes.count("MatMul") == 2 and "Softmax" in nodes and "Cast" not in nodes


def test_statistics_of_attention_are_not_written() -> None:
    both = lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False)[:2]  # noqa: E731
    with pytest.raises(LoweringError, match="its statistics are read"):
        lower_region(_of_gpu(both, 3, HALF), target(Release.of(NEWEST)))


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_whatever_is_taken_is_written_with_operators_that_the_parser_has(stand_in, release) -> None:
    """Blocks of networks: every op is judged by its nodes, so a region of taken ops has no other nodes."""
    stand_in(release)
    bench = Bench()

    def block(x: Any, w: Any, b: Any) -> Any:
        value = gelu(layer_norm(x @ w, (16,), b, b)) + torch.where(x > 0, x, x.exp())
        return torch.cat([value.amax(1, keepdim=True), value.mean(1, keepdim=True)], 1).clamp(0, 1)

    values = [torch.randn(4, 16), torch.randn(16, 16), torch.randn(16)]
    assert not bench.refusals(block, values)
    region = bench.region(block, values)
    kernels = target(Release.of(release)).kernels
    nodes = lower_region(region, target(Release.of(release))).model.graph.node
    assert {node.op_type for node in nodes} <= set(kernels)
