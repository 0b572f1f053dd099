"""Random numbers are those that torch draws on NVIDIA GPUs: known ones, who gets which, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mixbackend.backends.codegen import random_state
from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.check import check_stages
from mixbackend.backends.codegen.ir.philox import uniform
from mixbackend.backends.codegen.ir.stages import StageGraph
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.random_state import take_random_state
from mixbackend.backends.codegen.runner_text import runner_text
from mixbackend.backends.codegen.schedule.schedule import schedule
from mixbackend.backends.codegen.targets.cpp.target import CppTarget
from mixbackend.backends.codegen.targets.triton.compiler import Architecture
from mixbackend.backends.codegen.targets.triton.target import Hardware, TritonTarget
from mixbackend.contracts import Availability, Supported
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.trace import trace_region

THREADS = 512
"""Few, so that small tensors take more than one turn."""
H200 = Hardware(Architecture("cuda", "90", 32), 132, 2048)


def _number(value: int) -> torch.Tensor:
    return torch.tensor([value])


def _draws(seed: int, count: int, offset: int = 0, threads: int = 256, vector: int = 1) -> torch.Tensor:
    return uniform(_number(seed), _number(offset), torch.arange(count), _number(threads), _number(vector))


@pytest.mark.parametrize(
    ("seed", "known"),
    [
        (0, [0.3990, 0.5167, 0.0249, 0.9401, 0.9459, 0.7967, 0.4150, 0.8203, 0.2290, 0.9096]),
        (42, [0.6130, 0.0101, 0.3984, 0.0403, 0.1563, 0.4825]),
    ],
)
def test_first_numbers_of_torch_rand_on_a_gpu(seed: int, known: Sequence[float]) -> None:
    torch.testing.assert_close(_draws(seed, len(known)), torch.tensor(known), atol=5e-5, rtol=0)


def test_offsets_and_turns_walk_the_same_streams() -> None:
    whole = _draws(7, 4 * 256 + 5)
    assert torch.equal(_draws(7, 5, offset=4), whole[4 * 256 :])
    assert torch.equal(
        _draws(7, 1024, threads=1, vector=4)[: 4 * 3].reshape(3, 4), _draws(7, 12, threads=1).reshape(3, 4)
    )


def test_eight_at_once_take_two_draws_each() -> None:
    eights, fours = _draws(3, 64, threads=4, vector=8), _draws(3, 64, threads=4, vector=4)
    assert torch.equal(eights[:4], fours[:4])
    assert torch.equal(eights[4:8], fours[16:20])
    assert torch.equal(eights[8:12], fours[4:8])


def test_two_at_once_throw_half_of_a_draw_away() -> None:
    pairs, single = _draws(3, 12, threads=2, vector=2), _draws(3, 12, threads=1)
    assert torch.equal(pairs[[0, 1, 4, 5]], single[[0, 1, 4, 5]])


def graph_of(function: Callable[..., Any], inputs: Sequence[torch.Tensor], dynamic: bool = False) -> StageGraph:
    graph = lower_region(trace_region(function, inputs, dynamic=dynamic), THREADS)
    check_stages(graph)
    return graph


def dropped(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[StageGraph, torch.Tensor, list[torch.Tensor]]:
    x = torch.randn(shape).to(dtype)
    graph = graph_of(lambda x: torch.native_dropout(x, 0.25, True), [x])
    return graph, x, interpret_stages(graph, [x, _number(11), _number(8)])


@pytest.mark.parametrize(
    ("dtype", "shape", "vector", "moved"),
    [
        (torch.float32, (40, 60), 4, 8),
        (torch.float16, (40, 60), 8, 8),
        (torch.bfloat16, (3, 30), 2, 4),
        (torch.float32, (7, 11), 1, 4),
    ],
)
def test_dropout_keeps_what_eager_keeps(dtype: torch.dtype, shape: tuple[int, ...], vector: int, moved: int) -> None:
    graph, x, (value, mask) = dropped(dtype, shape)
    threads = min(THREADS, -(-x.numel() // 256) * 256)
    kept = (_draws(11, x.numel(), 8, threads, vector) < 0.75).reshape(shape)
    assert torch.equal(mask, kept)
    assert torch.equal(value, (x.float() * kept * torch.tensor(1 / 0.75)).to(dtype))
    assert graph.draws == moved


def test_what_is_infinite_and_dropped_is_not_a_number() -> None:
    x = torch.full((8, 8), float("inf"))
    value, mask = interpret_stages(graph_of(lambda x: torch.native_dropout(x, 0.5, True), [x]), [x, *[_number(4)] * 2])
    assert bool(value[mask].isinf().all()) and bool(value[~mask].isnan().all()) and not bool(mask.all())


def test_a_later_op_goes_on_where_the_one_before_stopped() -> None:
    x = torch.randn(8, 8)
    graph = graph_of(lambda x: (torch.rand_like(x), torch.bernoulli(x, 0.3), torch.rand_like(x)), [x])
    first, trials, last = interpret_stages(graph, [x, _number(5), _number(12)])
    assert graph.draws == 12
    assert torch.equal(first.flatten(), _draws(5, 64, 12))
    assert torch.equal(trials.flatten(), (_draws(5, 64, 16) < 0.3).float())
    assert torch.equal(last.flatten(), _draws(5, 64, 20))


def test_numbers_of_16_bits_never_round_to_one() -> None:
    x = torch.empty(64, 64, dtype=torch.bfloat16)
    (value,) = interpret_stages(graph_of(torch.rand_like, [x]), [x, _number(1), _number(0)])
    plain = _draws(1, 4096, threads=THREADS).reshape(64, 64).bfloat16()
    assert float(plain.max()) == 1.0 and float(value.max()) < 1.0
    assert torch.equal(value, plain.where(plain != 1, 0))


def test_dropout_of_evaluation_draws_nothing() -> None:
    x = torch.randn(4, 4)
    graph = graph_of(lambda x: torch.native_dropout(x, 0.5, False), [x])
    value, mask = interpret_stages(graph, [x])
    assert graph.draws == 0 and torch.equal(value, x) and bool(mask.all())


def test_everything_is_dropped_without_a_draw() -> None:
    x = torch.full((4, 4), float("inf"))
    graph = graph_of(lambda x: torch.native_dropout(x, 1.0, True), [x])
    value, mask = interpret_stages(graph, [x])
    assert graph.draws == 0 and bool((value == 0).all()) and not bool(mask.any())


def test_the_run_function_takes_the_state_for_all_draws_at_once() -> None:
    target = TritonTarget(H200)
    graph = graph_of(
        lambda x: torch.native_dropout(torch.native_dropout(x, 0.1, True)[0], 0.1, True), [torch.ones(8, 8)]
    )
    program = schedule(graph, target.traits())
    text = runner_text(program, "cuda")
    assert "x1, x2 = take_random_state(x0.device, 8)" in text and "(x0,) = inputs" in text
    assert len(program.calls) == 1


def test_sizes_may_be_symbols_where_their_factors_decide() -> None:
    x = torch.randn(5, 7)
    graph = graph_of(lambda x: torch.native_dropout(torch.stack([x] * 4, -1), 0.5, True), [x], dynamic=True)
    sizes = sorted(graph.draws.free_symbols, key=str)
    assert graph.draws.subs(dict(zip(sizes, (5, 7), strict=True))) == 4
    assert graph.draws.subs(dict(zip(sizes, (50, 70), strict=True))) == 28


REFUSED = {
    "float64": (lambda x: torch.native_dropout(x, 0.5, True), [torch.ones(4, 4, dtype=torch.float64)], "float64"),
    "columns": (lambda x: torch.native_dropout(x, 0.5, True), [torch.ones(4, 6).t()], "not row-major"),
    "normal": (lambda x: torch.randn_like(x), [torch.ones(4, 4)], "no lowering rule"),
    "probabilities": (lambda x: torch.bernoulli(x), [torch.ones(4, 4)], "no lowering rule"),
    "nothing": (lambda x: torch.rand_like(x), [torch.ones(0, 4)], "for nothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_drawn_in_other_ways_is_refused(name: str) -> None:
    function, inputs, words = REFUSED[name]
    region = trace_region(function, inputs)
    verdicts = [judge_op(view, drawing_threads=THREADS) for view in region.views if view.op != "getitem"]
    assert words in str(verdicts[-1])


def test_parts_of_tensors_are_refused() -> None:
    def drop_part(x: torch.Tensor) -> Any:
        return torch.native_dropout(x[1:], 0.5, True)

    region = trace_region(drop_part, [torch.ones(5, 8)])
    with pytest.raises(Exception, match="part of a tensor"):
        lower_region(region, THREADS)


def test_unknown_sizes_are_refused_where_they_decide() -> None:
    region = trace_region(lambda x: torch.native_dropout(x, 0.5, True), [torch.ones(5, 7)], dynamic=True)
    assert "divides" in str(judge_op(region.views[0], drawing_threads=THREADS))
    region = trace_region(lambda x: torch.rand_like(x), [torch.ones(5, 7)], dynamic=True)
    assert "one kernel" in str(judge_op(region.views[0], drawing_threads=THREADS))


def test_processors_and_amd_draw_in_another_way() -> None:
    region = trace_region(lambda x: torch.native_dropout(x, 0.5, True), [torch.ones(4, 8)])
    assert "random" in str(judge_op(region.views[0]))
    assert TritonTarget(replace(H200, architecture=Architecture("hip", "gfx942", 64))).traits().drawing_threads is None
    assert TritonTarget(H200).traits().drawing_threads == 132 * 2048


def test_a_backend_takes_draws_where_its_target_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TritonTarget, "availability", lambda self: Availability(True))
    drawing, plain = CodegenBackend(TritonTarget(H200)), CodegenBackend(CppTarget())
    mode = fresh_fake_mode()
    with mode:
        x = torch.empty(4, 8, device="cuda")
    region = trace_region(lambda x: torch.native_dropout(x, 0.5, True), [x])
    assert drawing.traits().keeps_random_stream and drawing.judge(region.views[0]) == Supported()
    assert not plain.traits().keeps_random_stream


class _Generator:
    """As torch's of a GPU."""

    def __init__(self, seed: int, offset: int) -> None:
        self.seed, self.offset = seed, offset

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset


@pytest.mark.parametrize(("seed", "signed"), [(5, 5), ((1 << 64) - 3, -3)])
def test_the_generator_moves_on_by_what_is_drawn(seed: int, signed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = _Generator(seed, 12)
    made: list[tuple[int, torch.device]] = []
    monkeypatch.setattr(torch.cuda, "default_generators", (None, generator))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch, "full", lambda size, value, dtype, device: made.append((value, device)))
    take_random_state(torch.device("cuda", 1), 8)
    gpu = torch.device("cuda", 1)
    assert generator.offset == 20 and made == [(signed, gpu), (12, gpu)]


def test_a_recording_leaves_the_generator_to_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(random_state, "recorded_random_state", lambda *question: asked.append(question))
    take_random_state(torch.device("cuda", 0), 8)
    assert asked == [(0, 8)]
