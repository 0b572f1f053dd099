"""Views, parts and rearrangements: static, symbolic, empty, of inputs and of computed tensors."""

from __future__ import annotations

import pytest
import torch

from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.stages import AliasOutput, Concatenate, Map
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.contracts import Unsupported
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten

VIEWS = {
    "reshape": lambda x: x.reshape(2, 2, 3, 10),
    "merge": lambda x: x.reshape(12, 10),
    "merge_all": lambda x: x.reshape(-1),
    "regroup": lambda x: x.reshape(6, 4, 5),
    "ones": lambda x: x.reshape(1, 4, 1, 6, 5, 1),
    "transposed_merge": lambda x: x.transpose(0, 1).reshape(24, 5),
    "expand": lambda x: x[:, :1].expand(3, 4, 6, 5),
    "permute": lambda x: x.permute(2, 0, 1),
    "unsqueeze": lambda x: (x.unsqueeze(0), x.unsqueeze(-1)),
    "squeeze": lambda x: (x[:1].squeeze(), x[:1].squeeze(0), x.squeeze(1), x[:, :1].squeeze((0, 1))),
    "select": lambda x: (x[1], x[:, -2], x.select(-1, 0)),
    "slice": lambda x: (x[1:3], x[:, -2:], x[..., 1::2], x[5:9], x[-9:2], x[3:1], x[-3:-1]),
    "split": lambda x: tuple(x.split(4, 1)) + tuple(x.split([1, 2, 3], 1)),
    "unbind": lambda x: tuple(x.unbind(1)),
    "chunk": lambda x: tuple(x.chunk(3, 2)),
    "diagonal": lambda x: (x.diagonal(), x.diagonal(1, 1, 2), x.diagonal(-2, 0, 1), x.diagonal(9, 1, 2)),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "flip": lambda x: x.flip(0, 2),
    "rot90": lambda x: tuple(torch.rot90(x, turns, (0, 2)) for turns in range(-1, 4)),
    "roll": lambda x: (x.roll(2, 1), x.roll((1, -2), (0, 2)), x.roll(7)),
    "repeat": lambda x: (x.repeat(2, 1, 3), x.repeat(2, 1, 1, 1)),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "movedim": lambda x: x.movedim(0, 2),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "slice_scatter": lambda x: (x.slice_scatter(x[:2], 0, 1, 3), x.slice_scatter(x[:2], 0, 0, 4, 2)),
    "slice_scatter_end": lambda x: (x.slice_scatter(x[:3], 0, -3), x.slice_scatter(x * 2, 0, -9, 99)),
    "select_scatter": lambda x: (x.select_scatter(x[0] * 2, 0, -1), x.select_scatter(x[:, 0], 1, 2)),
    "diagonal_scatter": lambda x: (
        x.diagonal_scatter(x.diagonal() * 2),
        x.diagonal_scatter(x.diagonal(2, 1, 2), 2, 1, 2),
        x.diagonal_scatter(x.diagonal(-1, 1, 2), -1, 1, 2),
    ),
    "slice_backward": lambda x: (
        aten.slice_backward(x, [4, 9, 5], 1, 2, 8, 1),
        aten.slice_backward(x, [4, 12, 5], 1, -12, 2**63 - 1, 2),
        aten.slice_backward(x, [4, 6, 5], 1, 0, 2**63 - 1, 1),
    ),
    "select_backward": lambda x: aten.select_backward(x, [4, 3, 6, 5], 1, -1),
    "diagonal_backward": lambda x: aten.diagonal_backward(x[0], [6, 8, 5], 3, 2, 1),
    "diag_embed": lambda x: torch.diag_embed(x, 1),
    "contiguous": lambda x: (x.transpose(0, 1).contiguous(), x.clone(), x.detach() + 1),
    "tril": lambda x: (x.tril(), x.tril(-2), x.triu(1), x.triu(-1)),
    "shuffle": lambda x: (
        torch.pixel_shuffle(x.reshape(8, 3, 5), 2),
        torch.pixel_unshuffle(x.reshape(1, 12, 10), 2),
        torch.channel_shuffle(x.reshape(2, 6, 2, 5), 3),
    ),
}


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_an_input(name, check_lowering):
    check_lowering(VIEWS[name], [torch.randn(4, 6, 5)])


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_a_computed_tensor(name, check_lowering):
    check_lowering(lambda x: VIEWS[name](x.transpose(0, 2) * 2.0), [torch.randn(5, 6, 4)])


SYMBOLIC = {
    "merge": lambda x: x.reshape(-1, x.shape[2]) * 2,
    "split_heads": lambda x: x.reshape(x.shape[0], x.shape[1], 2, -1).transpose(1, 2) * 2,
    "merge_heads": lambda x: x.transpose(0, 1).reshape(x.shape[1], -1) * 2,
    "expand": lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1) + 1,
    "slice": lambda x: (x[1:] * 2, x[:, :-1] * 2, x[..., -2:] * 2, x[:, 1::2] * 2, x[: x.shape[1] // 2] * 2),
    "select": lambda x: (x[-1] * 2, x[:, 1] * 2),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 1),
    "repeat": lambda x: x.repeat(2, 1, 1),
    "channel_shuffle": lambda x: torch.channel_shuffle(x, 2),
    "slice_scatter": lambda x: x.slice_scatter(x[1:] * 2, 0, 1),
    "select_scatter": lambda x: x.select_scatter(x[0] * 2, 0, 1),
    "slice_backward": lambda x: aten.slice_backward(x[1:], x.shape, 0, 1, 2**63 - 1, 1),
    "arange": lambda x: x + torch.arange(x.shape[2], dtype=torch.float32) + torch.arange(x.shape[1])[:, None],
    "factories": lambda x: x + torch.ones(x.shape[2]) + x.new_full(x.shape, 2.0) + torch.full((), x.shape[0]),
    "size_as_number": lambda x: x * x.shape[0] + x / x.shape[1],
    "mask": lambda x: x.masked_fill(torch.ones(x.shape[1], x.shape[2], dtype=torch.bool).tril() == 0, 0.0),
    "pool_like": lambda x: x.unfold(1, 2, 2) * 2,
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes(name, check_lowering):
    check_lowering(SYMBOLIC[name], [torch.randn(4, 6, 8)], dynamic=True)


@pytest.mark.parametrize("name", ["reshape", "slice", "flip", "roll", "repeat", "expand", "select"])
def test_empty_tensors(name, check_lowering):
    functions = {
        "reshape": lambda x: (x.reshape(3, 0, 7), x.reshape(0)),
        "slice": lambda x: (x[1:], x[:, 1:]),
        "flip": lambda x: x.flip(0, 1),
        "roll": lambda x: (x.roll(1, 0), x.roll(1)),
        "repeat": lambda x: x.repeat(2, 3),
        "expand": lambda x: x.unsqueeze(0).expand(3, -1, -1),
        "select": lambda x: x[:, 1] + 1,
    }
    check_lowering(functions[name], [torch.randn(0, 4)])


def test_a_tensor_repeated_zero_times_is_not_read(check_lowering):
    check_lowering(lambda x: x.repeat(0, 4), [torch.randn(3)])


def test_a_view_of_an_input_leaves_as_such(check_lowering):
    graph = check_lowering(lambda x: x.transpose(0, 1)[1:].reshape(5, 2, 2), [torch.randn(4, 6)])
    assert isinstance(graph.outputs[0], AliasOutput)
    assert not graph.stages


def test_a_copy_of_an_input_does_not(check_lowering):
    graph = check_lowering(lambda x: x.t().clone(), [torch.randn(4, 6)])
    assert [type(stage) for stage in graph.stages] == [Map]


def test_a_gradient_of_two_halves_is_one_tensor(check_lowering):
    graph = check_lowering(lambda g, x: aten.glu_backward(g, x, 1), [torch.randn(3, 2), torch.randn(3, 4)])
    assert isinstance(graph.stages[0], Concatenate)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda x: x.as_strided((2, 2), (1, 2)), "unknown-op"),
        (lambda x: x.view(torch.int32), "unknown-op"),
        (lambda x: torch.complex(x, x).abs(), "dtype"),
        (lambda x: x.to(torch.complex64), "dtype"),
        (lambda x: torch.linspace(0, 5, 4, dtype=torch.int64) + x[0, 0].int(), "dtype"),
        (lambda x: x.half().round(decimals=2), "dtype"),
    ],
)
def test_refusals(function, code):
    region = trace_region(function, [torch.randn(4, 6)])
    verdicts = [judge_op(view) for view in region.views]
    assert code in [verdict.code for verdict in verdicts if isinstance(verdict, Unsupported)]


def test_reading_an_input_of_other_strides():
    """Index arithmetic never leans on how an input lies in memory."""
    function = lambda x: x.transpose(0, 1).reshape(4, 6) + 1  # noqa: E731
    contiguous = torch.randn(4, 6)
    strided = torch.randn(6, 8).t()[1:5]
    graph = lower_region(trace_region(function, [contiguous]))
    assert torch.equal(interpret_stages(graph, [strided])[0], function(strided))
