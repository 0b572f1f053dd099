"""The model that an engine is built from: forms of weights, numbers read off tensors, profiles of sizes."""

from __future__ import annotations

import itertools
from typing import Any

import onnx
import pytest
import sympy
import torch
from onnx.reference import ReferenceEvaluator

from mixbackend.backends.common.onnx import LoweringError
from mixbackend.backends.tensorrt.model import Entrance, Prepared, prepare
from mixbackend.backends.tensorrt.profiles import conditions, profiles
from mixbackend.backends.tensorrt.sizes import size_nodes, writable
from mixbackend.backends.tensorrt.versions import Release
from mixbackend.contracts import InputRole, RegionInput, SymbolicSize, TensorMeta

from .conftest import NEWEST, OLDEST, Bench, close, given, known

S, T = sympy.symbols("s t", integer=True, positive=True)


def _nodes(prepared: Prepared) -> list[str]:
    return [node.op_type for node in onnx.load_model_from_string(prepared.model).graph.node]


def _prepared(function: Any, values: Any, release: str = NEWEST, **keywords: Any) -> Prepared:
    return prepare(Bench().region(function, values, **keywords), Release.of(release))


def test_what_happens_to_a_weight_first_is_done_to_its_value() -> None:
    image = torch.randn(1, 4, 8, 8)
    weight = torch.randn(8, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    convolve = lambda x, w: torch.ops.aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)  # noqa: E731
    prepared = _prepared(convolve, [image, weight], constants=(1,))
    assert _nodes(prepared) == ["Conv"]
    (item,) = prepared.weights
    assert item.shape == (8, 4, 3, 3) and torch.equal(item.of(weight), weight) and item.of(weight).is_contiguous()


def test_a_weight_that_is_turned_and_cast_enters_turned_and_cast() -> None:
    values = [torch.randn(3, 8), torch.randn(6, 8, dtype=torch.float16)]
    prepared = _prepared(lambda x, w: torch.tanh(x * 2) @ w.float().t().contiguous(), values, constants=(1,))
    assert not {"Transpose", "Cast"} & set(_nodes(prepared))
    (item,) = prepared.weights
    assert item.dtype is torch.float32
    turned = values[1].float() if item.shape == (6, 8) else values[1].float().t()
    assert torch.equal(item.of(values[1]), turned) and item.of(values[1]).is_contiguous()


@pytest.mark.parametrize("turned", [False, True])
def test_a_weight_that_is_repeated_over_the_batch_is_there_once(turned) -> None:
    weight = torch.randn(16, 8)
    expanded = weight.t().expand(64, 8, 16) if turned else weight.t().contiguous().expand(64, 8, 16)
    values = [torch.randn(64, 3, 8), expanded]
    prepared = _prepared(lambda x, w: torch.relu(torch.bmm(x, w)), values, constants=(1,))
    (item,) = prepared.weights
    assert item.nbytes == weight.nbytes
    assert torch.equal(item.of(expanded).reshape(item.shape[-2:]), weight.t().reshape(item.shape[-2:]))


def test_what_others_need_in_full_stays_so() -> None:
    values = [torch.randn(64, 3, 8), torch.randn(1, 3, 8).expand(64, 3, 8)]
    prepared = _prepared(lambda x, w: torch.cat([x, w], 1), values, constants=(1,))
    assert [item.shape for item in prepared.weights] == [(64, 3, 8)]


def test_one_weight_in_two_forms_is_two_weights_of_one_constant() -> None:
    values = [torch.randn(8, 8), torch.randn(8, 8)]
    prepared = _prepared(lambda x, w: (x @ w) @ torch.relu(x @ w.t().contiguous()), values, constants=(1,))
    assert {item.place for item in prepared.weights} == {prepared.weights[0].place}
    assert len({(item.order, item.dtype) for item in prepared.weights}) == len(prepared.weights)
    offsets = sorted((item.offset, item.nbytes) for item in prepared.weights)
    assert all(first + size <= second for (first, size), (second, _) in itertools.pairwise(offsets))


def test_equal_regions_give_equal_bytes_and_no_values() -> None:
    def made() -> Prepared:
        values = [torch.randn(3, 64), torch.randn(64, 64)]
        return _prepared(lambda x, w: torch.relu(x @ w), values, constants=(1,))

    one, two = made(), made()
    assert one.model == two.model and one.digest == two.digest and len(one.model) < 4096


def test_whole_numbers_are_narrowed_on_the_border_of_release_8_alone() -> None:
    values = [torch.randn(9, 4), torch.randint(0, 9, (5,))]
    look_up = lambda t, i: torch.nn.functional.embedding(i, t)  # noqa: E731
    for release, wanted in ((OLDEST, torch.int32), (NEWEST, torch.int64)):
        prepared = _prepared(look_up, values, release)
        assert wanted in {item.dtype for item in prepared.entrances}


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_positions_and_masks_that_are_constant_are_kept_when_bound(bench, release) -> None:
    made = bench(release)
    values = [torch.randn(9, 4), torch.randint(0, 9, (5,)), torch.randn(5, 5) > 0]
    function = lambda t, i, m: torch.where(m, torch.nn.functional.embedding(i, t) @ t[:5].t(), 0.0)  # noqa: E731
    region = made.region(function, values, constants=(1, 2))
    inputs = given(region, values)
    bound = made.compile(region).bind(known(region, inputs))
    handed = [
        value if item.role is not InputRole.CONSTANT else None
        for item, value in zip(region.inputs, inputs, strict=True)
    ]
    assert close(bound.run(handed)[0], function(*values))


# --- sizes -----------------------------------------------------------------------------------------------------------


def _size(expression: sympy.Expr, hint: int, lower: int = 1, upper: int | None = None) -> SymbolicSize:
    return SymbolicSize(expression, hint, lower, upper)


def _entrance(*shape: Any, name: str = "x") -> Entrance:
    return Entrance(0, name, torch.float32, None, shape, constant=False)


def test_known_sizes_need_no_profile() -> None:
    assert profiles([_entrance(2, 3)]) == () and conditions([_entrance(2, 3)]) == ()


def test_a_narrow_range_has_one_profile_and_no_conditions() -> None:
    entrances = [_entrance(_size(S, 4, 2, 8), 3)]
    (profile,) = profiles(entrances)
    assert profile.shapes == (("x", (2, 3), (4, 3), (8, 3)),)
    assert conditions(entrances) == ()


def test_a_wide_range_has_one_around_what_was_captured_first() -> None:
    entrances = [_entrance(_size(S, 32, 2), 3), _entrance(_size(2 * S, 64, 4), name="y")]
    near, whole = profiles(entrances)
    assert near.shapes == (("x", (16, 3), (32, 3), (64, 3)), ("y", (32,), (64,), (128,)))
    assert whole.shapes == (("x", (2, 3), (32, 3), (128, 3)), ("y", (4,), (64,), (256,)))
    assert near.serves({"x": (20, 3), "y": (40,)}) and not near.serves({"x": (2, 3), "y": (4,)})
    assert {str(item) for item in conditions(entrances)} == {"s at most 128", "2*s at most 256"}


def test_sizes_that_may_be_zero_are_served_from_one_on() -> None:
    entrances = [_entrance(_size(S, 4, 0, 8))]
    assert {str(item) for item in conditions(entrances)} == {"s at least 1"}


def test_sizes_that_do_not_grow_with_their_symbols_are_refused() -> None:
    with pytest.raises(LoweringError, match="do not grow"):
        profiles([_entrance(_size(S, 4, 2, 8)), _entrance(_size(100 - S, 96, 92, 98), name="y")])
    with pytest.raises(LoweringError, match="has the size s, t by itself"):
        profiles([_entrance(_size(S * T, 4, 2, 8))])


def test_sizes_that_enter_as_numbers_are_computed_from_tensors() -> None:
    meta = TensorMeta((_size(S, 6), _size(T, 5)), (_size(T, 5), 1), torch.float32, torch.device("cpu"))
    inputs = [RegionInput("x", meta, InputRole.ACTIVATION)]
    graph = onnx.helper.make_graph(
        size_nodes(S * T + 3, "n", inputs, ["x"]),
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, ["s", "t"])],
        [onnx.helper.make_tensor_value_info("n", 7, [])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    (found,) = ReferenceEvaluator(model).run(None, {"x": torch.zeros(6, 5).numpy()})
    assert int(found) == 33
    assert writable(S * T + 3) and not writable(sympy.sqrt(S))
    with pytest.raises(LoweringError, match="no tensor that enters shows it"):
        size_nodes(sympy.sqrt(S), "n", inputs, ["x"])
