"""Attention that is written out becomes one of torch's kernels; on fake tensors and stand-ins, without a GPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._pytree import tree_map

from mixbackend.backends.cudnn import written_attention
from mixbackend.graph.describe import describe
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner import place

aten = torch.ops.aten
HEADS, SIZE = 4, 16


def _split(value):
    """(batch, length, heads * size) as models give it to attention."""
    return value.reshape(*value.shape[:2], HEADS, SIZE).transpose(1, 2)


def _torch(query, key, value, mask=None, scale=None):
    """As torch writes it out: in float32 between 16-bit values."""
    made = aten._scaled_dot_product_attention_math(_split(query), _split(key), _split(value), mask, scale=scale)[0]
    return made.transpose(1, 2).clone(memory_format=torch.contiguous_format).reshape(query.shape)


def _eager(query, key, value, mask=None, factor=0.25, softmax=torch.softmax):
    """As models write it out, in 16 bits."""
    scores = torch.matmul(_split(query), _split(key).transpose(2, 3)) * factor
    scores = scores if mask is None else scores + mask
    weights = softmax(scores, -1)
    made = torch.matmul(weights.to(query.dtype), _split(value))
    return made.transpose(1, 2).clone(memory_format=torch.contiguous_format)


def _safe(scores, dimension):
    return aten._safe_softmax(scores.float(), dimension)


@pytest.fixture
def values():
    """Query, keys and values of a model, and a mask."""

    def make(queries=8, keys=8, dtype=torch.float16, batch=2, mask=None):
        torch.manual_seed(0)
        made = [torch.randn(batch, length, HEADS * SIZE).to(dtype) for length in (queries, keys, keys)]
        return made if mask is None else [*made, (torch.randn(mask) * 2).to(dtype)]

    return make


@pytest.fixture
def kernel():
    """Torch's kernels for GPUs on the processor, where torch has none; what they were given is remembered."""
    given = []

    def stand_in(query, key, value, bias, scale):
        scores = query.float() @ key.float().mT * scale
        scores = scores if bias is None else scores + bias
        made = aten._safe_softmax(scores, -1) @ value.float()
        # As kernels have it: rows of heads.
        made = made.to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2)
        given.append((query, key, value, bias, made))
        return made

    none = torch.empty(0, dtype=torch.int64)

    def flash(query, key, value, *rest, scale):
        return stand_in(query, key, value, None, scale), none, none, none, 0, 0, none, none, none

    def efficient(query, key, value, bias, *rest, scale):
        return stand_in(query, key, value, bias, scale), none, none, none

    def cudnn(query, key, value, bias, *rest, scale):
        return stand_in(query, key, value, bias, scale), none, none, none, 0, 0, none, none, none

    # They are there until it goes.
    library = torch.library.Library("aten", "IMPL")
    for function in (flash, efficient, cudnn):
        library.impl(f"_scaled_dot_product_{function.__name__}_attention", function, "CPU")
    yield given
    del library


def _fakes(bench, values):
    with bench.mode:
        return [torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="cuda") for item in values]


def _names(plan):
    return [name for region in plan.regions for name, _ in region.matches]


def _run(bench, function, values, **settings):
    region = bench.region(function, *_fakes(bench, values), **settings)
    assert len(region.matches) == 1, "not recognised"
    compiled = bench.backend.compile(region)
    order = {item.name: place for place, item in enumerate(region.inputs)}
    given = [values[int(name.removeprefix("arg").split("_")[0])] for name in order]
    return compiled, given


CASES = {
    "torch": (_torch, {}),
    "torch, masked": (_torch, {"mask": (2, 1, 8, 8)}),
    "mask per head": (_torch, {"mask": (1, HEADS, 8, 8)}),
    "mask of keys": (_torch, {"mask": (2, 1, 1, 8)}),
    "mask of two dimensions": (_torch, {"mask": (8, 8)}),
    "odd lengths": (_torch, {"queries": 5, "keys": 7, "mask": (2, 1, 5, 7)}),
    "one query": (_torch, {"queries": 1, "keys": 9}),
    "one image": (_torch, {"batch": 1, "mask": (1, 1, 8, 8)}),
    "bfloat16": (_torch, {"dtype": torch.bfloat16, "mask": (2, 1, 8, 8)}),
    "model": (_eager, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_written_attention_is_one_call_with_its_numbers(bench, kernel, values, case):
    function, settings = CASES[case]
    inputs = values(**settings)
    compiled, given = _run(bench, function, inputs)
    assert compiled.source.count("attend_(") == 1
    assert "bmm" not in compiled.source and "softmax" not in compiled.source
    (result,) = compiled.run(given)
    wanted = function(*inputs)
    assert result.stride() == wanted.stride()
    torch.testing.assert_close(result, wanted, rtol=2e-2, atol=2e-2)
    assert len(kernel) == 1


def test_projections_are_read_as_they_lie_and_the_result_is_not_copied(bench, kernel, values):
    inputs = values()
    compiled, given = _run(bench, _torch, inputs)
    (result,) = compiled.run(given)
    assert result.untyped_storage().data_ptr() == kernel[0][4].untyped_storage().data_ptr()
    storages = {item.untyped_storage().data_ptr() for item in inputs}
    assert {item.untyped_storage().data_ptr() for item in kernel[0][:3]} == storages


@pytest.mark.parametrize("shape", [(2, 1, 5, 8), (2, 1, 5, 7), (1, 7), (7,), (5, 1), ()])
def test_masks_get_aligned_rows(shape):
    mask = torch.randn(shape).half()
    made = written_attention.aligned(mask)
    whole = (2, 3, 5, shape[-1] if shape else 7)
    torch.testing.assert_close(made.expand(whole), mask.expand(whole))
    assert made.stride(-1) == 1
    assert all(step % 8 == 0 for step, size in zip(made.stride()[:-1], made.shape[:-1], strict=True) if size > 1)


def test_an_expanded_mask_is_copied_small_and_an_aligned_one_not_at_all():
    expanded = torch.zeros(1, 1, 1, 1, dtype=torch.float16).expand(16, 1, 128, 128)
    made = written_attention.aligned(expanded)
    assert made.untyped_storage().nbytes() <= 2 * 128
    dense = torch.zeros(2, 1, 8, 16, dtype=torch.float16)
    assert written_attention.aligned(dense) is dense


def test_a_row_without_keys_is_zeros(bench, kernel, values):
    inputs = values(mask=(2, 1, 8, 8))
    inputs[3][:, :, 2] = -math.inf
    compiled, given = _run(bench, _torch, inputs)
    (result,) = compiled.run(given)
    assert not result[:, 2].any()
    torch.testing.assert_close(result, _torch(*inputs), rtol=2e-2, atol=2e-2)


def test_a_known_mask_is_made_ready_once_and_one_of_zeros_is_none(bench, kernel, values):
    inputs = values(mask=(2, 1, 8, 8))
    compiled, given = _run(bench, _torch, inputs, constants=(3,))
    where = next(place for place, item in enumerate(given) if item is inputs[3])
    for mask, known in ((inputs[3], True), (torch.zeros_like(inputs[3]), False)):
        kernel.clear()
        bound = compiled.bind([mask if place == where else None for place in range(4)])
        (result,) = bound.run([None if place == where else item for place, item in enumerate(given)])
        torch.testing.assert_close(result, _torch(*inputs[:3], mask), rtol=2e-2, atol=2e-2)
        assert (kernel[0][3] is not None) is known


def _none(bench, function, values, **settings):
    graph = trace_graph(function, _fakes(bench, values), **settings)[1]
    return _names(place(graph, bench.backends, bench.costs)) == []


def test_what_kernels_would_compute_otherwise_is_left_alone(bench, values):
    masked = values(mask=(2, 1, 8, 8))
    assert _none(bench, _eager, masked), "a softmax of a row without keys is NaN"
    assert not _none(bench, lambda *given: _eager(*given, softmax=_safe), masked)
    assert _none(bench, _torch, [item.float() for item in masked]), "TF32"
    assert _none(bench, _torch, [*masked[:3], masked[3].float()]), "16 bits may not hold the mask"
    assert _none(bench, _torch, masked, phase="forward"), "the backward needs the weights"
    assert _none(bench, lambda *given: _eager(*given, factor=-1.0), masked[:3])
    assert _none(
        bench, lambda q, k, v: _eager(q, k, v, softmax=lambda scores, _: torch.softmax(scores, -2)), masked[:3]
    )


def test_values_in_between_that_somebody_reads_keep_it_apart(bench, values):
    def function(query, key, value):
        weights = torch.softmax(torch.matmul(_split(query), _split(key).transpose(2, 3)), -1)
        return torch.matmul(weights, _split(value)), weights

    assert _none(bench, function, values())


def test_the_price_is_that_of_an_attention(bench, values):
    fakes = _fakes(bench, values(queries=128, keys=128, batch=16))
    plan = place(trace_graph(_torch, fakes)[1], bench.backends, bench.costs)
    assert _names(plan) == ["attention_rows_turned"], plan


def _with_symbols(inputs):
    """The graph with symbolic sizes, as if it were a GPU's: fake tensors there cannot be given symbols."""
    module, _ = trace_graph(_torch, inputs, dynamic=True)

    def moved(value):
        if not isinstance(value, torch.Tensor):
            return value
        with value.fake_mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")

    for node in module.graph.nodes:
        node.meta |= {"val": tree_map(moved, node.meta["val"])} if "val" in node.meta else {}
    return module, describe(module, "inference", "moved", {})


def test_sizes_may_be_symbolic(bench, kernel, values):
    module, graph = _with_symbols(values(queries=6, keys=6, mask=(2, 1, 6, 6)))
    plan = place(graph, bench.backends, bench.costs)
    assert _names(plan) == ["attention_rows_turned_masked"], plan
    region = next(item.region for item in cut_regions(module, graph, plan) if item.region.matches)
    compiled = bench.backend.compile(region)
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    for length in (6, 9):
        inputs = values(queries=length, keys=length, batch=3, mask=(3, 1, length, length))
        present = dict(zip(names, inputs, strict=True))
        sizes = {2: 3, 6: length, 8: 3 * HEADS}  # by hint: batch, length, both of the product's
        given = [present[item.name] if item.name in present else sizes[item.meta.hint] for item in region.inputs]
        (result,) = compiled.run(given)
        torch.testing.assert_close(result.reshape(inputs[0].shape), _torch(*inputs), rtol=2e-2, atol=2e-2)


def test_kernels_that_give_no_zeros_lose(monkeypatch):
    def poor(query, key, value, bias, causal, scale):
        return (torch.nn.functional.softmax(query.float() @ key.float().mT * scale + bias, -1) @ value.float(),)

    def good(query, key, value, bias, causal, scale):
        return (aten._safe_softmax(query.float() @ key.float().mT * scale + bias, -1) @ value.float(),)

    heads = [torch.randn(2, 3, 8, 16) for _ in range(3)]
    bias = torch.zeros(1, 1, 8, 8)
    bias[..., 0, :] = -math.inf
    written_attention._way(good, heads, bias, 0.25)()
    with pytest.raises(RuntimeError, match="poor"):
        written_attention._way(poor, heads, bias, 0.25)()
