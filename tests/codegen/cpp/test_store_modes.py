"""Stores that combine: every mode on every type of memory, one by one and by vectors, shared and not.

Every kernel holds one way to store and one type; its buffers after the first two are one for each mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from printed_kernels import Library, interpreted
from sample_kernels import LONG, i0, i1, kernel, load, loop, p0, p1, store, v0
from tiers import draws

from mixbackend.backends.codegen.ir.kernel import Kernel, KernelLoop, Nest
from mixbackend.backends.codegen.ir.scalar import apply
from mixbackend.backends.codegen.targets.cpp.literals import STORAGE

DTYPES = tuple(STORAGE)
MODES = ("set", "add", "mul", "max", "min")
WIDTHS = (64, 16)[: draws(1, 2)]
SIZE = 77
ROWS = 9

_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES}


def _kernel(
    dtype: torch.dtype, modes: tuple[str, ...], nest: Callable[[str, str], Nest], outer: tuple[KernelLoop, ...] = ()
) -> Kernel:
    """``nest`` makes the nest of a store's arguments for each mode."""
    updates = ", ".join(f"update {_NAMES[dtype]}" for _ in modes)
    nests = [nest(f"b{place + 2}", mode) for place, mode in enumerate(modes)]
    return kernel(f"read {_NAMES[dtype]}, read int64, {updates}", nests, outer)


def _lanes(dtype: torch.dtype, offset: Any, masked: bool, mode_of_loop: str = "vector") -> Kernel:
    """Lanes next to each other or not, all of them or some."""
    mask = apply("lt", load("b1", i0, LONG), load("b1", p0, LONG)) if masked else None

    def nest(buffer: str, mode: str) -> Nest:
        return Nest(
            (loop(i0, p0, mode_of_loop),), (), (store(buffer, offset, load("b0", i0, dtype), mode=mode, mask=mask),)
        )

    return _kernel(dtype, MODES, nest)


def _met(dtype: torch.dtype, atomic: bool) -> Kernel:
    """Several updates of one element, in order or by whichever thread comes first."""

    def nest(buffer: str, mode: str) -> Nest:
        bindings = ((v0, load("b1", i0, LONG)),)
        update = store(buffer, v0, load("b0", i0, dtype), mode=mode, bindings=bindings, atomic=atomic)
        return Nest(() if atomic else (loop(i0, p0, "ordered"),), (), (update,))

    return _kernel(dtype, MODES[1:], nest, (loop(i0, p0, "parallel"),) if atomic else ())


def _rows(dtype: torch.dtype) -> Kernel:
    """Rows of lanes that go to rows named at run time."""

    def nest(buffer: str, mode: str) -> Nest:
        bindings = ((v0, load("b1", i0, LONG)),)
        update = store(buffer, v0 * p1 + i1, load("b0", i0 + i1, dtype), mode=mode, bindings=bindings)
        return Nest((loop(i0, 8, "ordered"), loop(i1, p1, "vector")), (), (update,))

    return _kernel(dtype, MODES[1:], nest)


FORMS = {
    "scalar": lambda dtype: _lanes(dtype, i0, False, "serial"),
    "contiguous": lambda dtype: _lanes(dtype, i0, False),
    "contiguous_masked": lambda dtype: _lanes(dtype, i0, True),
    "strided": lambda dtype: _lanes(dtype, 3 * i0, False),
    "strided_masked": lambda dtype: _lanes(dtype, 2 * i0, True),
    "met": lambda dtype: _met(dtype, False),
    "atomic": lambda dtype: _met(dtype, True),
    "rows": _rows,
}
KERNELS = {f"{form}_{_NAMES[dtype]}": make(dtype) for form, make in FORMS.items() for dtype in DTYPES}


@pytest.fixture(scope="module", params=WIDTHS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(KERNELS, tmp_path_factory.mktemp("stores"), request.param)


def _memory(name: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Values that combine without rounding where the order of updates is open: powers of two, and small sums."""
    generator = torch.Generator().manual_seed(len(name))
    made = {"b1": torch.randint(0, ROWS, (SIZE + 1,), generator=generator)}
    made["b1"][SIZE] = ROWS // 2
    for item in KERNELS[name].buffers:
        if item.name == "b1":
            continue
        if dtype == torch.bool:
            made[item.name] = torch.randint(0, 2, (3 * SIZE,), generator=generator) > 0
        elif dtype.is_floating_point:
            choices = torch.tensor([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0], dtype=dtype)
            made[item.name] = choices[torch.randint(0, 6, (3 * SIZE,), generator=generator)]
        else:
            low = 0 if dtype == torch.uint8 else -100
            made[item.name] = torch.randint(low, 100, (3 * SIZE,), generator=generator).to(dtype)
    return made


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_every_mode(library: Library, form: str, dtype: torch.dtype) -> None:
    name = f"{form}_{_NAMES[dtype]}"
    before = _memory(name, dtype)
    if form in ("met", "atomic") and dtype.is_floating_point:
        before["b3"].abs_()  # products of all signs would be beyond the type
    sizes = {p0: SIZE, p1: 2 * ROWS + 1}
    parameters = [sizes[symbol] for symbol in KERNELS[name].parameters]
    expected = interpreted(KERNELS[name], before, parameters)
    memory = {key: value.clone() for key, value in before.items()}
    library.run(name, memory, parameters, [])
    for item in KERNELS[name].buffers:
        torch.testing.assert_close(memory[item.name], expected[item.name], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64), ids=str)
@pytest.mark.parametrize("form", ("contiguous", "scalar"))
def test_extremes_keep_nan_and_infinity(library: Library, form: str, dtype: torch.dtype) -> None:
    name = f"{form}_{_NAMES[dtype]}"
    before = _memory(name, dtype)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0], dtype=dtype)
    before["b0"][:25] = special.repeat_interleave(5)
    for place in (5, 6):
        before[f"b{place}"][:25] = special.repeat(5)
    expected = interpreted(KERNELS[name], before, [SIZE])
    memory = {key: value.clone() for key, value in before.items()}
    library.run(name, memory, [SIZE], [])
    for place in (5, 6):
        torch.testing.assert_close(memory[f"b{place}"], expected[f"b{place}"], rtol=0, atol=0, equal_nan=True)
