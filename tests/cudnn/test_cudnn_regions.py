"""What the cuDNN backend claims, refuses and writes; on fake tensors, so that no GPU is needed."""

from __future__ import annotations

import pytest
import torch

from mixbackend.backends.cudnn import CudnnBackend, convolutions
from mixbackend.contracts import Unsupported

aten = torch.ops.aten


def _convolve(image, weight, bias, groups=1, transposed=False):
    return aten.convolution(image, weight, bias, [1, 1], [1, 1], [1, 1], transposed, [0, 0], groups)


def _block(image, weight, bias, other):
    return aten.relu(aten.add(_convolve(image, weight, bias), other))


@pytest.fixture
def images(bench):
    return bench.tensors((8, 64, 56, 56), (64, 64, 3, 3), (64,), (8, 64, 56, 56), channels_last=True)


def test_it_says_why_it_cannot_be_used_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = CudnnBackend().availability()
    assert not answer.available
    assert "CUDA" in answer.reason
    with torch.backends.cudnn.flags(enabled=False):
        assert "switched off" in CudnnBackend().availability().reason


def test_a_convolution_with_its_relu_is_one_step(bench, images):
    image, weight, bias, _ = images
    region = bench.region(lambda *values: aten.relu(_convolve(*values)), image, weight, bias)
    assert [pattern for pattern, _ in region.matches] == ["convolution_relu"]


@pytest.mark.parametrize("residual_first", [False, True])
def test_a_residual_is_added_in_the_kernel(bench, images, residual_first):
    def swapped(image, weight, bias, other):
        return aten.relu(aten.add(other, _convolve(image, weight, bias)))

    region = bench.region(swapped if residual_first else _block, *images)
    assert [pattern for pattern, _ in region.matches] == ["convolution_add_relu"]
    source = bench.backend.compile(region).source
    assert source.count("fused_add_relu") == 1
    assert "aten" not in source


def test_a_fused_chain_is_what_the_planner_chooses(bench, images):
    plan = bench.plan(_block, *images)
    assert [item.backend for item in plan.regions] == ["cudnn"]


def test_without_a_fused_kernel_the_steps_are_written_out(bench, images, monkeypatch):
    monkeypatch.setattr(convolutions, "fastest", lambda names, question, make: 1)
    source = bench.backend.compile(bench.region(_block, *images)).source
    assert "plain_add_relu" in source
    assert "fused" not in source


@pytest.mark.parametrize(
    ("channels", "groups", "transposed", "refused"),
    [(64, 64, False, "argument"), (64, 1, True, "argument"), (3, 1, False, "layout")],
)
def test_what_has_no_fused_kernel_is_not_fused(bench, channels, groups, transposed, refused):
    image, weight, bias = bench.tensors((2, channels, 8, 8), (64, channels // groups, 3, 3), (64,))

    def function(*values):
        return aten.relu(_convolve(*values, groups=groups, transposed=transposed))

    region = bench.plan(function, image, weight, bias, preferred=True).regions[0]
    assert not region.matches, refused


def test_nothing_is_fused_where_cudnn_shall_be_deterministic(bench):
    """torch's fused kernels take no word of it."""
    image, weight, bias = bench.tensors((2, 64, 8, 8), (64, 64, 3, 3), (64,))
    function = lambda *values: aten.relu(_convolve(*values))  # noqa: E731 - one expression
    assert bench.plan(function, image, weight, bias, preferred=True).regions[0].matches
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        assert not bench.plan(function, image, weight, bias, preferred=True).regions[0].matches


def test_a_library_that_promises_nothing_is_left_out_where_results_must_repeat(bench, images):
    torch.use_deterministic_algorithms(True)
    try:
        plan = bench.plan(_block, *images)
    finally:
        torch.use_deterministic_algorithms(False)
    assert "cudnn" not in [item.backend for item in plan.regions]


def test_a_residual_of_another_shape_is_not_fused(bench, images):
    image, weight, bias, _ = images
    (row,) = bench.tensors((64, 1, 1))
    plan = bench.plan(_block, image, weight, bias, row, preferred=True)
    assert "convolution_add_relu" not in [name for item in plan.regions for name, _ in item.matches]


def test_constant_weights_take_the_layout_of_their_image_when_bound(bench, images):
    region = bench.region(_block, *images, constants=(1,))
    compiled = bench.backend.compile(region)
    weight = torch.randn(64, 64, 3, 3)
    places = [place for place, item in enumerate(region.inputs) if item.name == "arg1_1" or item.role.is_weight]
    bound = compiled.bind([weight if place in places else None for place in range(len(region.inputs))])
    assert bound.constant_bytes == weight.numel() * 4
    again = compiled.bind(
        [weight.contiguous(memory_format=torch.channels_last) if place in places else None for place in range(4)]
    )
    assert again.constant_bytes == 0


def test_other_devices_and_types_are_refused_with_reasons(bench):
    values = [torch.randn(2, 8, 8, 8), torch.randn(8, 8, 3, 3), torch.randn(8)]
    assert [item.code for item in bench.refusals(_convolve, *values)] == ["device"]
    doubles = bench.tensors((2, 8, 8, 8), (8, 8, 3, 3), (8,), dtype=torch.float64)
    assert [item.code for item in bench.refusals(_convolve, *doubles)] == ["dtype"]
    (image,) = bench.tensors((2, 8, 8, 8))
    assert [item.code for item in bench.refusals(aten.sigmoid, image)] == ["unknown-op"]


def _attend(query, key, value):
    return aten._scaled_dot_product_flash_attention(query, key, value)[0]


def test_attention_is_taken_in_inference_alone(bench):
    heads = bench.tensors(*[(4, 12, 128, 64)] * 3)
    assert bench.refusals(_attend, *heads) == []
    (refusal,) = bench.refusals(_attend, *heads, phase="forward")
    assert refusal.code == "phase"


def test_attention_with_dropout_draws_random_numbers_and_without_does_not(bench):
    heads = bench.tensors(*[(4, 12, 128, 64)] * 3)

    def dropped(query, key, value):
        return aten._scaled_dot_product_flash_attention(query, key, value, 0.1)[0]

    assert bench.refusals(dropped, *heads)[0].code == "random"
    assert not any(isinstance(item, Unsupported) for item in bench.refusals(_attend, *heads))


def test_the_fastest_attention_is_written(bench, monkeypatch):
    from mixbackend.backends.cudnn import attention

    heads = bench.tensors(*[(4, 12, 128, 64)] * 3)
    names = {}
    for place in range(3):
        monkeypatch.setattr(attention, "fastest", lambda names, question, make, place=place: place)
        source = bench.backend.compile(bench.region(_attend, *heads)).source
        names[place] = next(name for name in ("flash", "efficient", "cudnn") if f" {name}_(" in source)
    assert names == {0: "flash", 1: "efficient", 2: "cudnn"}


def test_attention_of_float32_is_left_to_kernels_that_have_code_for_it(bench, monkeypatch):
    from mixbackend.backends.cudnn import attention

    def efficient(query, key, value):
        return aten._scaled_dot_product_efficient_attention(query, key, value, None, False)[0]

    asked = {}
    for dtype in (torch.float32, torch.float16):
        heads = bench.tensors(*[(4, 12, 128, 64)] * 3, dtype=dtype)
        monkeypatch.setattr(attention, "fastest", lambda names, *_, dtype=dtype: asked.setdefault(dtype, names) and 0)
        bench.backend.compile(bench.region(efficient, *heads))
    assert asked == {torch.float32: ["efficient"], torch.float16: ["efficient", "flash", "cudnn"]}


def test_attention_whose_statistics_are_read_stays_as_traced(bench):
    def function(query, key, value):
        return aten._scaled_dot_product_flash_attention(query, key, value)[:2]

    heads = bench.tensors(*[(4, 12, 128, 64)] * 3)
    source = bench.backend.compile(bench.region(function, *heads)).source
    assert " attention_(" in source
