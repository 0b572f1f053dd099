"""B8: generated code on processors tells of indices, labels and divisors out of range, before it writes into inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.nn import functional

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.ir.check import check_program
from mixbackend.contracts import InputRangeError, Region
from mixbackend.execute.verify import eager_result
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
WEIGHT = torch.arange(50 * 17, dtype=torch.float32).reshape(50, 17) / 8
ROWS = torch.arange(63).reshape(7, 9) % 50
COLUMNS = torch.arange(50 * 33).reshape(50, 33) % 17
NARROW = COLUMNS[:, :9].contiguous()
PLACES = torch.arange(0, 18, 2)
VALUES = torch.ones(9, 17)
SCORES = torch.arange(640.0).reshape(64, 10).remainder(7)
LABELS = torch.arange(64) % 10
LABELS[5] = -100
DIVISORS = torch.arange(3 * 37).reshape(3, 37) % 9 + 1


def _but(tensor: torch.Tensor, value: int, place: int = -1) -> torch.Tensor:
    """The tensor with one element replaced: the last one, where vectors are not full."""
    changed = tensor.clone()
    changed.view(-1)[place] = value
    return changed


def _cached(cache: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    updated = cache.index_copy(0, places, values)
    cache.copy_(updated)
    return updated.sum(0)


def _counted(count: torch.Tensor, cache: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    following = count + 1
    updated = aten.index_put(cache, [following], values)
    count.copy_(following)
    cache.copy_(updated)
    return updated * 2


def _added_and_read(cache: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    updated = cache.index_add(0, places, values)
    result = functional.embedding(places, updated)
    cache.copy_(updated)
    return result


def _divided_beside(dividend: torch.Tensor, divisor: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    quotient = dividend // divisor
    count.copy_(count + 1)
    return quotient


Case = tuple[Callable[..., Any], Sequence[torch.Tensor], int, Sequence[torch.Tensor]]
"""A function, inputs that are in range, the place of one among them, and values of it for which eager raises."""

CASES: dict[str, Case] = {
    "embedding": (lambda w, i: functional.embedding(i, w) * 2, [WEIGHT, ROWS], 1, [_but(ROWS, 50), _but(ROWS, -1, 0)]),
    "padded embedding": (lambda w, i: functional.embedding(i, w, 3), [WEIGHT, ROWS], 1, [_but(ROWS, 50)]),
    "rows that nobody reads": (lambda w, i: functional.embedding(i, w)[:, :2] + 1, [WEIGHT, ROWS], 1, [_but(ROWS, 50)]),
    "index": (lambda w, i: w[i].sum(-1), [WEIGHT, ROWS], 1, [_but(ROWS, 50), _but(ROWS, -51)]),
    "two indices": (lambda w, i, j: w[i, j], [WEIGHT, PLACES, PLACES % 17], 2, [_but(PLACES % 17, 17)]),
    "gather": (lambda w, i: w.gather(1, i) + 1, [WEIGHT, COLUMNS], 1, [_but(COLUMNS, 17), _but(COLUMNS, -1, 0)]),
    "gather that is masked": (
        lambda w, i: torch.where(i < 17, w.gather(1, i), 0),
        [WEIGHT, COLUMNS],
        1,
        [_but(COLUMNS, 17)],
    ),
    "gather that is padded": (
        lambda w, i: functional.pad(w.gather(1, i - 1), (2, 3)),
        [WEIGHT, COLUMNS % 16 + 1],
        1,
        [COLUMNS],
    ),
    "index_select": (lambda w, i: w.index_select(1, i), [WEIGHT, PLACES % 17], 1, [_but(PLACES % 17, 17)]),
    "take": (lambda w, i: w.take(i), [WEIGHT, ROWS], 1, [_but(ROWS, 850), _but(ROWS, -851)]),
    "scatter": (lambda w, i: w.scatter(1, i, 1.0), [WEIGHT, NARROW], 1, [_but(NARROW, 17)]),
    "index_put": (lambda w, i, v: aten.index_put(w, [i], v, True), [WEIGHT, PLACES, VALUES], 1, [_but(PLACES, 50)]),
    "index_add": (lambda w, i, v: w.index_add(0, i, v), [WEIGHT, PLACES, VALUES], 1, [_but(PLACES, -1)]),
    "index_fill": (lambda w, i: w.index_fill(0, i, 1.0), [WEIGHT, PLACES], 1, [_but(PLACES, 50)]),
    "masked_scatter": (
        lambda m, s, x: x.masked_scatter(m, s),
        [WEIGHT[:1] > 1, WEIGHT[0, :9].clone(), WEIGHT[1:2]],
        0,
        [WEIGHT[:1] > -1],
    ),
    "cross entropy": (functional.cross_entropy, [SCORES, LABELS], 1, [_but(LABELS, 10), _but(LABELS, -1)]),
    "places of an expanded tensor": (lambda w, i: w.expand(5, 17)[i] + 1, [WEIGHT[:1], PLACES % 5], 1, [PLACES]),
    "places of an input of stride 0": (lambda w, i: w[i] * 2, [WEIGHT[:1].expand(5, 17), PLACES % 5], 1, [PLACES]),
    "rows of an expanded tensor": (
        lambda w, i: functional.embedding(i, w.expand(50, 17)),
        [WEIGHT[:1], ROWS],
        1,
        [_but(ROWS, 50)],
    ),
    "the only place": (lambda w, i: w.index_select(0, i), [WEIGHT[0, :1], PLACES * 0], 1, [_but(PLACES * 0, 1)]),
    "the only place of a scalar": (lambda x, i: x.gather(0, i), [WEIGHT[0, 0], ROWS[0, 0]], 1, [ROWS[0, 1]]),
    "a number": (lambda x, i: torch.full((5,), 2.0)[i] + x, [VALUES[:, 0], PLACES % 5], 1, [PLACES]),
    "losses": (lambda x, y: functional.nll_loss(x, y, reduction="none"), [SCORES, LABELS], 1, [_but(LABELS, 10)]),
    "cache": (_cached, [WEIGHT, PLACES, VALUES], 1, [_but(PLACES, 50), _but(PLACES, -1)]),
    "counter and cache": (_counted, [torch.tensor([3]), WEIGHT, VALUES[:1]], 0, [torch.tensor([49])]),
    "added and read": (_added_and_read, [WEIGHT, PLACES, VALUES], 1, [_but(PLACES, 50)]),
    "division beside a counter": (
        _divided_beside,
        [DIVISORS + 20, DIVISORS, torch.zeros(3)],
        1,
        [_but(DIVISORS, 0), _but(DIVISORS, 0, 0)],
    ),
}
for _dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
    _small = DIVISORS.to(_dtype)
    _cases: dict[str, Callable[..., Any]] = {
        "floor": lambda a, b: a // b,
        "remainder": lambda a, b: a % b,
        "fmod": torch.fmod,
        "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    }
    for _name, _function in _cases.items():
        CASES[f"{_name} of {_dtype}"] = (_function, [_small + 20, _small], 1, [_but(_small, 0), _but(_small, 0, 0)])


def _region(case: Case) -> Region:
    return trace_region(case[0], case[1])


def _arguments(region: Region, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """In the order of the region's inputs, and nobody else's; those that are not contiguous nobody writes into."""
    chosen = (given[int(item.name[3:].partition("_")[0])] for item in region.inputs)
    return [item.clone() if item.is_contiguous() else item for item in chosen]


def _wrong(case: Case, value: torch.Tensor) -> list[torch.Tensor]:
    return [value if place == case[2] else item for place, item in enumerate(case[1])]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_what_eager_raises_for_is_told(name: str) -> None:
    case = CASES[name]
    region = _region(case)
    run = CodegenBackend().compile(region).run
    mine, eagers = _arguments(region, case[1]), _arguments(region, case[1])
    for result, expected in zip([*run(mine), *mine], [*eager_result(region, eagers), *eagers], strict=True):
        torch.testing.assert_close(result, expected)
    for value in case[3]:
        given = _arguments(region, _wrong(case, value))
        kept = [item.clone() for item in given]
        with pytest.raises(InputRangeError):
            run(given)
        for item, before in zip(given, kept, strict=True):
            assert torch.equal(item, before), "an input was written into"
        with pytest.raises((IndexError, RuntimeError)):
            eager_result(region, given)


@pytest.mark.parametrize("name", ["gather", "cache", "counter and cache", "added and read", "fmod of torch.uint8"])
def test_programs_mean_that(name: str) -> None:
    case = CASES[name]
    region = _region(case)
    program = CodegenBackend().program(region)
    check_program(program)
    interpret_program(program, _arguments(region, case[1]))
    given = _arguments(region, _wrong(case, case[3][0]))
    kept = [item.clone() for item in given]
    with pytest.raises(InputRangeError):
        interpret_program(program, given)
    assert all(torch.equal(item, before) for item, before in zip(given, kept, strict=True))


def test_what_eager_does_not_look_at_is_not_told() -> None:
    """Negative indices, ignored labels, rows that only the gradient names, and what is beside a vector's last lane."""
    cases: list[tuple[Callable[..., Any], list[torch.Tensor]]] = [
        (lambda w, i: w[i], [WEIGHT, ROWS - 50]),
        (lambda x, y: functional.nll_loss(x, y, ignore_index=12), [SCORES, _but(LABELS % 10, 12)]),
        (lambda g, i: aten.embedding_dense_backward(g, i, 50, -1, False), [VALUES, _but(PLACES, 70)]),
        (lambda a, b: a // (b - 1), [DIVISORS.int(), DIVISORS.int() + 1]),
        (lambda a, b: a // b, [DIVISORS.float(), torch.zeros(3, 37)]),
        (lambda w, i: w.gather(1, i - 3), [WEIGHT, NARROW + 3]),
        (lambda m, s, x: x.masked_scatter(m, s), [WEIGHT[:1] < 0, WEIGHT[0, :1].clone(), WEIGHT[1:2]]),
    ]
    for function, inputs in cases:
        region = trace_region(function, inputs)
        given = _arguments(region, inputs)
        for result, expected in zip(
            CodegenBackend().compile(region).run(given), eager_result(region, given), strict=True
        ):
            torch.testing.assert_close(result, expected)


def test_threads_are_told_of_their_own_calls_alone() -> None:
    case = CASES["gather"]
    region = _region(case)
    run = CodegenBackend().compile(region).run
    right, wrong = _arguments(region, case[1]), _arguments(region, _wrong(case, case[3][0]))

    def told(number: int) -> list[bool]:
        found = []
        for _ in range(200):
            try:
                run(wrong if number % 2 else right)
                found.append(False)
            except InputRangeError:
                found.append(True)
        return found

    with ThreadPoolExecutor(4) as callers:
        for number, found in enumerate(callers.map(told, range(4))):
            assert set(found) == {bool(number % 2)}


def test_a_team_stops_before_it_writes() -> None:
    """Threads agree on whether to go on: a large cache, so that several of them share its kernels."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        cache, places = torch.zeros(2000, 512), torch.arange(2000)
        region = trace_region(_cached, [cache, places, torch.ones(2000, 512)])
        run = CodegenBackend().compile(region).run
        for turn in range(20):
            given = _arguments(region, [cache, _but(places, 2000, turn * 99), torch.ones(2000, 512)])
            written = given[region.written[0]]
            with pytest.raises(InputRangeError):
                run(given)
            assert not written.any()
    finally:
        torch.set_num_threads(before)
