"""Masks of attention that are known by shape alone are said in words that torch has kernels for; others stay."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from torch._subclasses import FakeTensorMode

import mixbackend
from mixbackend.graph import attention_masks
from mixbackend.graph.attention_masks import simplify_attention_masks

_LENGTH = 6


def _simplified(model, *inputs, dynamic=False):
    """(mask of the call, whether it is causal) after the rewrite, whose results must stay what they were."""
    seen = []

    def backend(graph_module, example_inputs):
        simplify_attention_masks(graph_module)
        graph_module.graph.lint()
        for call in graph_module.graph.find_nodes(op="call_function", target=attention_masks._ATTENTION):
            arguments = [attention_masks._argument(call, which) for which in (("attn_mask", 3), ("is_causal", 5))]
            seen.append((arguments[0], bool(arguments[1])))
        return graph_module

    torch._dynamo.reset()
    torch.manual_seed(0)
    wanted = model(*inputs)
    torch.manual_seed(0)
    found = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)(*inputs)
    torch.testing.assert_close(found, wanted)
    assert seen
    return seen


def _heads(length=_LENGTH, differentiated=True):
    return tuple(torch.randn(2, 3, length, 8, requires_grad=differentiated) for _ in range(3))


def _attention(make):
    """Attention with a mask that is made of the query and what else is given."""

    def model(query, key, value, *given):
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=make(query, *given))

    return model


def _all_hold(query):
    """As Hugging Face's encoders make it without padding: a column that is spread."""
    rows = torch.arange(query.shape[2], device=query.device)[None, None, :, None]
    return (rows >= 0).expand(query.shape[0], -1, query.shape[2], query.shape[2])


def _packed_and_causal(query):
    """As Hugging Face's decoders make it of positions that nobody gave."""
    length, batch = query.shape[2], query.shape[0]
    places = torch.arange(length, device=query.device)
    positions = places.unsqueeze(0).expand(batch, -1)
    steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
    packed = (steps != 1).cumsum(-1)
    rows, columns = places[None, None, :, None], places[None, None, None, :]
    images = torch.arange(batch, device=query.device)[:, None, None, None]
    result = rows.new_ones((), dtype=torch.bool) & (columns <= rows).to(query.device)
    return (result & (packed[images, rows] == packed[images, columns])).expand(batch, -1, length, length)


def _zeros(query):
    return torch.zeros(query.shape[2], query.shape[2])


def _upper_infinite(query):
    return torch.triu(torch.full((query.shape[2], query.shape[2]), float("-inf")), diagonal=1)


def _upper_lowest(query):
    length = query.shape[2]
    lower = torch.ones(length, length, dtype=torch.bool).tril()
    return torch.where(lower, 0.0, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("make", [_all_hold, _zeros])
def test_a_mask_that_hides_nothing_is_none(make) -> None:
    assert _simplified(_attention(make), *_heads()) == [(None, False)]


@pytest.mark.parametrize("make", [_packed_and_causal, _upper_infinite, _upper_lowest])
def test_a_mask_that_hides_the_future_is_causal(make) -> None:
    assert _simplified(_attention(make), *_heads()) == [(None, True)]


def test_in_inference_only_causal_masks_are_told() -> None:
    """Attention written out, with a mask that is a constant, is a pattern that more backends know."""
    heads = _heads(differentiated=False)
    assert _simplified(_attention(_packed_and_causal), *heads) == [(None, True)]
    ((mask, causal),) = _simplified(_attention(_all_hold), *heads)
    assert mask is not None and not causal


def test_arguments_by_position() -> None:
    def model(query, key, value):
        return functional.scaled_dot_product_attention(query, key, value, _upper_infinite(query), 0.0, False)

    assert _simplified(model, *_heads()) == [(None, True)]


def test_arguments_by_name() -> None:
    def model(query, key, value):
        return functional.scaled_dot_product_attention(value=value, key=key, query=query, attn_mask=_all_hold(query))

    assert _simplified(model, *_heads()) == [(None, False)]


def _window(query):
    places = torch.arange(query.shape[2])
    return (places[None] <= places[:, None]) & (places[:, None] - places[None] < 3)


def _random(query):
    return torch.rand(query.shape[2], query.shape[2]) >= 0


def _with_random_zeros(query):
    return torch.zeros(query.shape[2], query.shape[2]) + torch.rand(1).floor()


def _written(query):
    mask = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool)
    mask[2:, 1] = False
    return mask


def _written_through_a_view(query):
    mask = torch.ones(query.shape[2] * query.shape[2], dtype=torch.bool)
    square = mask.view(query.shape[2], query.shape[2])
    mask[1:].view(-1)[4:9].logical_not_()
    return square


def _slightly_off(query):
    return torch.full((query.shape[2], query.shape[2]), 1e-3)


@pytest.mark.parametrize(
    "make", [_window, _random, _with_random_zeros, _written, _written_through_a_view, _slightly_off]
)
def test_other_masks_stay(make) -> None:
    ((mask, causal),) = _simplified(_attention(make), *_heads())
    assert mask is not None and not causal


def test_masks_that_depend_on_inputs_stay() -> None:
    given = torch.ones(2, 1, _LENGTH, _LENGTH, dtype=torch.bool)
    ((mask, _),) = _simplified(_attention(lambda query, mask: mask & (mask == mask)), *_heads(), given)
    assert mask is not None


def test_masks_of_symbolic_sizes_stay() -> None:
    ((mask, causal),) = _simplified(_attention(_packed_and_causal), *_heads(), dynamic=True)
    assert mask is not None and not causal


def test_causal_with_fewer_queries_than_keys_stays() -> None:
    """torch counts from the first key, decoders from the last: only squares are the same for both."""

    def model(query, key, value):
        places = torch.arange(_LENGTH)
        mask = places[None] <= places[-2:, None]
        return functional.scaled_dot_product_attention(query[:, :, -2:], key, value, attn_mask=mask)

    ((mask, causal),) = _simplified(model, *_heads())
    assert mask is not None and not causal


def _calls_with(mask, calls=1):
    """A graph of attention calls that share a mask, made by a function of torch that is given its arguments."""
    graph = torch.fx.Graph()
    query = graph.placeholder("query")
    query.meta["example_value"] = _heads()[0]
    made = graph.call_function(*mask)
    made.meta["example_value"] = torch.zeros(_LENGTH, _LENGTH)
    lower = graph.call_method("tril", (made,))
    lower.meta["example_value"] = torch.zeros(_LENGTH, _LENGTH)
    attention = functional.scaled_dot_product_attention
    graph.output([graph.call_function(attention, (query,) * 3, {"attn_mask": lower}) for _ in range(calls)])
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_a_mask_is_computed_once(monkeypatch) -> None:
    computed = []
    original = torch.Tensor.tril
    monkeypatch.setattr(torch.Tensor, "tril", lambda *given: computed.append(1) or original(*given))
    assert simplify_attention_masks(_calls_with((torch.zeros, (_LENGTH, _LENGTH)), calls=3)) == 3
    assert len(computed) == 1


def test_a_mask_that_cannot_be_computed_stays() -> None:
    """No memory for it, say."""
    assert simplify_attention_masks(_calls_with((torch.zeros, (_LENGTH, _LENGTH)))) == 1
    assert simplify_attention_masks(_calls_with((torch.zeros, (_LENGTH, -1)))) == 0


@pytest.mark.parametrize(("dtype", "copied"), [(torch.bfloat16, True), (torch.float32, False)])
def test_spread_columns_become_rows_for_a_gpu(dtype, copied) -> None:
    """Padding of queries, spread over keys: torch's kernels want rows in one piece."""
    with FakeTensorMode():
        heads = torch.empty(2, 3, _LENGTH, 8, device="cuda", dtype=dtype, requires_grad=True)
        column = torch.empty(2, 1, _LENGTH, 1, device="cuda", dtype=torch.bool)
        spread = column.expand(-1, -1, -1, _LENGTH)
    graph = torch.fx.Graph()
    query, mask = graph.placeholder("query"), graph.placeholder("mask")
    query.meta["example_value"], mask.meta["example_value"] = heads, spread
    calls = [graph.call_function(attention_masks._ATTENTION, (query, query, query), {"attn_mask": mask}) for _ in "ab"]
    graph.output(tuple(calls))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    assert simplify_attention_masks(module) == (2 if copied else 0)
    graph.lint()
    given = [call.kwargs["attn_mask"] for call in calls]
    assert given[0] is given[1] and (given[0] is not mask) == copied
    value = torch.rand(2, 1, _LENGTH, 1) > 0.5
    heads = torch.randn(2, 3, _LENGTH, 8)
    found = module(heads, value.expand(-1, -1, -1, _LENGTH))
    assert torch.equal(found[0], functional.scaled_dot_product_attention(heads, heads, heads, value.expand(2, 1, 6, 6)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [_all_hold, _packed_and_causal])
def test_gradients_through_a_mixture_are_eagers(make) -> None:
    heads = _heads()
    compiled = torch.compile(_attention(make), backend=mixbackend.auto(), fullgraph=True)
    wanted = torch.autograd.grad(_attention(make)(*heads).square().sum(), heads)
    found = torch.autograd.grad(compiled(*heads).square().sum(), heads)
    torch.testing.assert_close(found, wanted)
