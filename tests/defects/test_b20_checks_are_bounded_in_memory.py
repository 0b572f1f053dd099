"""B20: a check takes no more memory beside its call than it is allowed; what is larger is checked part by part, against
eager's own results, or not at all, which is said."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mixbackend.contracts import ErrorBudget, numerics
from mixbackend.execute import verify
from mixbackend.execute.check_memory import CallMemory
from mixbackend.execute.verify import check_region, eager_result
from mixbackend.graph.trace import trace_region

BUDGET = ErrorBudget(factor=4.0, floor=64.0)
ELEMENTS = 1 << 18


class _Peak(TorchDispatchMode):
    """The most bytes of new storages that were there at once."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.live = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        given = {item.untyped_storage()._cdata for item in tree_leaves((arguments, keywords)) if _is_tensor(item)}
        outputs = function(*arguments, **(keywords or {}))
        for item in tree_leaves(outputs):
            if _is_tensor(item) and item.untyped_storage()._cdata not in given | set(self._known):
                self._add(item.untyped_storage())
        return outputs

    def _add(self, storage):
        key, size = storage._cdata, storage.nbytes()
        self._known[key] = size
        self.live += size
        self.bytes = max(self.bytes, self.live)
        weakref.finalize(storage, self._remove, key)

    def _remove(self, key):
        self.live -= self._known.pop(key, 0)


def _is_tensor(item):
    return isinstance(item, torch.Tensor) and not isinstance(item, torch._subclasses.FakeTensor)


def _checked(region, inputs, results, cap, monkeypatch):
    """The check, and the bytes that it took."""
    monkeypatch.setattr(verify, "BYTE_CAP", cap)
    monkeypatch.setattr(numerics, "ELEMENTS_AT_ONCE", 1 << 12)
    with _Peak() as peak:
        check = check_region(region, inputs, results, BUDGET)
    return check, peak.bytes


def _spoiled(results, place):
    results = [result.clone() for result in results]
    results[-1].view(-1)[place] += 500 if results[-1].dtype is torch.bfloat16 else 3
    return results


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.int8, torch.float32, torch.bfloat16])
def test_what_takes_elements_one_by_one_is_checked_part_by_part(dtype, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    value = torch.randint(-50, 50, (4, ELEMENTS // 4), generator=generator).to(dtype)
    row = value[:1].clone()
    region = trace_region(lambda a, b: ((a + 1), torch.where(a > b, a, b * 2)), [value, row])
    right, cap = eager_result(region, [value, row]), CallMemory(region, [value, row]).wide // 3
    check, peak = _checked(region, [value, row], right, cap, monkeypatch)
    assert check.right and peak <= cap
    for place in (0, ELEMENTS // 2, ELEMENTS - 1):
        check, peak = _checked(region, [value, row], _spoiled(right, place), cap, monkeypatch)
        assert check.deviation is not None and check.deviation.output == 1 and peak <= cap


def _rows(x, w):
    """Four results of the same size, which need not be there at once."""
    first = x @ w
    second = torch.softmax(first, -1)
    third = second.cumsum(-1)
    return first, second, third, third.exp()


def test_what_does_not_fit_in_float64_is_held_against_eager_one_result_at_a_time(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(ELEMENTS // 64, 64, generator=generator), torch.randn(64, 64, generator=generator) / 8]
    region = trace_region(_rows, inputs)
    memory, cap = CallMemory(region, inputs), 13 * ELEMENTS
    assert memory.native <= cap < memory.wide and cap < 4 * 4 * ELEMENTS
    right = eager_result(region, inputs)
    check, peak = _checked(region, inputs, right, cap, monkeypatch)
    assert check.right and peak <= cap
    check, peak = _checked(region, inputs, _spoiled(right, 5), cap, monkeypatch)
    assert check.deviation.output == 3 and peak <= cap


def test_what_does_not_fit_at_all_is_not_begun(monkeypatch):
    inputs = [torch.randn(1024, 64), torch.randn(64, 64)]
    region = trace_region(_rows, inputs)
    right = eager_result(region, inputs)
    check, peak = _checked(region, inputs, right, 1 << 16, monkeypatch)
    assert not check.right and check.deviation is None and "memory" in check.unknown
    assert peak <= 1 << 16


def test_small_checks_are_whole(monkeypatch):
    inputs = [torch.randn(1024, 64), torch.randn(64, 64)]
    region = trace_region(_rows, inputs)
    memory = CallMemory(region, inputs)
    check, peak = _checked(region, inputs, eager_result(region, inputs), memory.wide, monkeypatch)
    assert check.right and memory.native < peak <= memory.wide


def test_sizes_are_those_of_the_call():
    inputs = [torch.randn(16, 8), torch.randn(8, 8)]
    region = trace_region(_rows, inputs, dynamic=True)
    small, large = (
        CallMemory(region, _in_order(region, [torch.empty(rows, 8), torch.empty(8, 8)])).wide for rows in (16, 1600)
    )
    assert 50 * small < large < 150 * small


def _in_order(region, tensors):
    """Arguments of a region: its tensors in their order, and the sizes that it takes beside them."""
    left = iter(tensors)
    return [next(left) if hasattr(item.meta, "dtype") else 8 for item in region.inputs]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.mse_loss(x, x + 1) * x,
        lambda x: torch.nn.functional.glu(x, 0),
        lambda x: x.t() + 1,
        lambda x: torch.rand_like(x) + x,
        lambda x: x.cumsum(0) + 1,
    ],
)
def test_what_looks_at_other_elements_has_no_parts(function):
    value = torch.randn(64, 64)
    region = trace_region(function, [value])
    assert CallMemory(region, [value]).parts(eager_result(region, [value]), 1 << 10) is None
