"""An edit of a part of a weight that torch does not count is seen after about a second of use, whatever calls take.

Use is said here by ``used`` instead of being spent.
"""

from __future__ import annotations

import time

import pytest
import torch

import mixbackend
from mixbackend.execute.weights.watch import WeightWatch, used

MEGABYTES_400 = 100_000_000


def use_until_seen(watch: WeightWatch, arguments: list[torch.Tensor], call_s: float, most_s: float) -> float:
    """Seconds of use, in calls of this length, until the watch sees a change."""
    use = 0.0
    while watch.unchanged(arguments):
        assert use < most_s
        used(call_s)
        use += call_s
    assert "content" in watch.change()
    return use


@pytest.mark.parametrize("edit", ["data", "numpy", "dlpack"])
@pytest.mark.parametrize("call_s", [0.002, 0.03, 3.0])
def test_a_second_of_use_is_enough_whatever_calls_take(edit: str, call_s: float) -> None:
    weight = torch.randn(1500, 1500)
    watch = WeightWatch([weight])
    arguments = [weight]
    assert watch.unchanged(arguments)
    if edit == "data":
        weight.data[3, 777] += 5
    elif edit == "numpy":
        weight.numpy()[3, 777] += 5
    else:
        torch.from_dlpack(weight.__dlpack__())[3, 777] += 5
    if edit == "dlpack" and not watch.unchanged(arguments):
        return
    # Nine megabytes are read within the share of a second on any machine that reads 2 GB a second.
    use_until_seen(watch, arguments, call_s, 2.0 + call_s)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", [0, 40, 62])
def test_a_stretch_of_a_weight_is_seen_within_a_second_whatever_the_size(part: int) -> None:
    weight = torch.ones(MEGABYTES_400)
    watch = WeightWatch([weight])
    stretch = MEGABYTES_400 // 64
    begin = min(part * stretch + stretch // 3, MEGABYTES_400 - stretch)
    weight.data[begin : begin + stretch] = 2
    use_until_seen(watch, [weight], 0.05, 2.0)


def test_a_column_of_a_weight_is_seen_in_time() -> None:
    weight = torch.zeros(8192, 4096)
    watch = WeightWatch([weight])
    weight.data[:, 1234] = 2
    use_until_seen(watch, [weight], 0.05, 8)


def test_the_last_bytes_are_seen() -> None:
    for count in (65, 4099, 16384 // 4 + 1, 250_007):
        weight = torch.zeros(count)
        watch = WeightWatch([weight])
        weight.data[-1] = 2
        use_until_seen(watch, [weight], 0.05, 2.0)


@pytest.mark.sampled(1)
@pytest.mark.alone
@pytest.mark.parametrize("graphs", [1, 8])
def test_looking_takes_a_hundredth_of_the_time_of_calls_at_most(graphs: int) -> None:
    """However many graphs a model has, and whatever pauses lie between calls."""
    # Other programs on the machine only add to what is measured: the least of three is the watch's own.
    assert min(_looking_s(graphs) for _ in range(3)) < 0.01 * 400 * 0.005


def _looking_s(graphs: int) -> float:
    """Seconds of looking in 400 calls of 5 ms, without what reading the clock takes."""
    weights = [[torch.randn(2000, 2000) for _ in range(8 // graphs)] for _ in range(graphs)]
    watches = [WeightWatch(part) for part in weights]
    spent = 0.0
    for call in range(400):
        for watch, part in zip(watches, weights, strict=True):
            used(0.005 / graphs)
            before = time.thread_time()
            assert watch.unchanged(part)
            spent += time.thread_time() - before
        if call % 40 == 0:
            time.sleep(0.05)
    return spent - _clock_s(400 * graphs)


def _clock_s(readings: int) -> float:
    """Seconds that so many pairs of readings of the clock see of themselves."""
    spent = 0.0
    for _ in range(readings):
        before = time.thread_time()
        spent += time.thread_time() - before
    return spent


def test_no_graph_starves_beside_another() -> None:
    """One with large weights that takes no time itself gets as much of the share as the one that takes all of it."""
    light, heavy = [torch.zeros(4_000_000)], [torch.zeros(4_000_000)]
    watches = [WeightWatch(light), WeightWatch(heavy)]
    light[0].data[3_999_999] = 2
    use = 0.0
    while watches[0].unchanged(light):
        assert watches[1].unchanged(heavy)
        used(0.02)
        use += 0.02
        assert use < 5


def test_a_model_uses_the_edited_weight() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1200, 1200), torch.nn.ReLU()).requires_grad_(False)
    run = torch.compile(model, backend=mixbackend.auto({"backends": ["codegen", "eager"]}))
    x = torch.randn(4, 1200)
    run(x)
    model[0].weight.data[3, 777] += 50
    begin = time.monotonic()
    while not torch.allclose(run(x), model(x), atol=1e-3):
        assert time.monotonic() - begin < 10


def test_invalidate_says_it_at_once() -> None:
    model = torch.nn.Linear(2000, 2000).requires_grad_(False)
    run = torch.compile(model, backend=mixbackend.auto({"backends": ["codegen", "eager"]}))
    x = torch.randn(4, 2000)
    run(x)
    model.weight.data[3, 777] += 50
    mixbackend.invalidate(run)
    torch.testing.assert_close(run(x), model(x), rtol=1e-3, atol=1e-3)


def test_invalidate_says_what_it_wants() -> None:
    with pytest.raises(mixbackend.MixbackendError, match=r"torch\.nn\.Module"):
        mixbackend.invalidate(torch.ones(3))  # type: ignore[arg-type]
