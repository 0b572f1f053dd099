"""A look at the machine: a few figures of torch's own kernels, in a moment, by which tables of rates are scaled.

Place: below ``rate_tables`` and ``scaled_rates``. Input: a device type, dtypes. Output: ``Look``.
Method: one product of matrices per dtype, on a processor one more through oneDNN, one copy, launches of a tiny kernel,
a loop of Python; the least of a few samples of each, since other programs only ever add time. What there was no time
for is left out. Two libraries, since torch's BLAS may use half of a processor: MKL takes narrower vectors on those of
other makers, oneDNN and generated code do not.
Invariants: no more than ``LONGEST_S``, but for libraries that are loaded by the first product; torch's random stream
is left alone; a dtype that torch lacks a product for is left out.
Non-goals: rates of backends; whether the machine is quiet.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mixbackend.contracts.torch_compat import float32_products
from mixbackend.host.undisturbed import undisturbed

Clock = Callable[[], float]

LONGEST_S = 0.3
DTYPES = ("float32", "float64", "bfloat16", "float16")
"""That products are looked at in, if a graph has them."""

_SAMPLES, _SLICE_S = 4, 0.02
"""Samples of each figure: so many, and more where they are short."""
_PRODUCT = {"cpu": 256, "cuda": 2048}
_COPY_BYTES = {"cpu": 1 << 24, "cuda": 1 << 26}
_LAUNCHES, _TURNS = 200, 10000
_QUEUED = 10
"""Products and copies of a sample on a GPU, so that the processor's way there and back does not count."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class Look:
    """What was seen.

    Attributes:
        products: FLOP/s of a product of matrices, by dtype.
        copy_bytes_per_s: of one copy, read and written.
        launch_s: one eager op on next to nothing.
        python_s: one turn of a loop.
        cores: that this process may use.
        onednn_flops_per_s: of the same product in float32 through oneDNN, with a weight in its own layout; ``None``
            where there is no oneDNN.
    """

    products: Mapping[str, float]
    copy_bytes_per_s: float
    launch_s: float
    python_s: float
    cores: float
    onednn_flops_per_s: float | None = None

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def with_products(self, more: Look) -> Look:
        """This one, with what another saw of further dtypes."""
        products = {**more.products, **self.products}
        return replace(self, products=products)

    @staticmethod
    def read(record: Any) -> Look:
        """From JSON.

        Raises:
            KeyError, TypeError, ValueError: it does not fit.
        """
        products = {str(dtype): _positive(rate) for dtype, rate in dict(record["products"]).items()}
        if "float32" not in products:
            raise ValueError("a look has a product in float32")
        names = ("copy_bytes_per_s", "launch_s", "python_s", "cores")
        onednn = record.get("onednn_flops_per_s")
        numbers = {name: _positive(record[name]) for name in names}
        return Look(products, **numbers, onednn_flops_per_s=None if onednn is None else _positive(onednn))


def usable_cores() -> float:
    """Cores that this process may use: by its affinity, and by the share of time that its cgroup has."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = QUOTA.read_text().split()[:2]
        return min(cores, float(quota) / float(period))
    except (OSError, ValueError):
        return cores  # No such file, or "max": no limit.


def look_at(device_type: str, dtypes: Iterable[str] = ("float32",), clock: Clock = time.perf_counter) -> Look:
    """Look at a device; call it outside of any tracing.

    Args:
        device_type: ``cpu`` or ``cuda``.
        dtypes: of products; float32 is always among them.
        clock: monotonic seconds.

    Raises:
        RuntimeError: the device has no room for it.
    """
    wanted = dict.fromkeys(("float32", *(dtype for dtype in dtypes if dtype in DTYPES)))
    with undisturbed(), float32_products("ieee"):
        eyes = _Eyes(torch.device(device_type), clock)
        products = {"float32": eyes.product("float32")}
        onednn = eyes.onednn_product()
        copied, launch, turn = eyes.copy(), eyes.launch(), eyes.turn()
        for dtype in wanted:
            if dtype not in products and eyes.seconds_left > 0.0:
                with contextlib.suppress(RuntimeError):  # torch has no such product here
                    products[dtype] = eyes.product(dtype)
    return Look(products, copied, launch, turn, usable_cores(), onednn)


class _Eyes:
    """Times single calls on one device, as long as there is time."""

    def __init__(self, place: torch.device, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._kind = place.type if place.type in _PRODUCT else "cuda"
        self._end: float | None = None

    @property
    def seconds_left(self) -> float:
        return LONGEST_S if self._end is None else self._end - self._clock()

    def product(self, dtype: str) -> float:
        """FLOP/s."""
        size = _PRODUCT[self._kind]
        value = torch.full((size, size), 0.01, device=self._place).to(getattr(torch, dtype))
        out = torch.empty_like(value)
        return 2.0 * size**3 / self._queued(lambda: torch.mm(value, value, out=out))

    def onednn_product(self) -> float | None:
        """FLOP/s; ``None`` where this torch or this device has no oneDNN."""
        if self._is_beside or not torch.backends.mkldnn.is_available():
            return None
        size = _PRODUCT["cpu"]
        value = torch.full((size, size), 0.01)
        with contextlib.suppress(RuntimeError, AttributeError):
            weight = torch.ops.mkldnn._reorder_linear_weight(value, size)
            run = torch.ops.mkldnn._linear_pointwise.default
            return 2.0 * size**3 / self._queued(lambda: run(value, weight, None, "none", [], ""))
        return None

    def copy(self) -> float:
        amount = _COPY_BYTES[self._kind]
        value = torch.zeros(amount // 4, device=self._place)
        out = torch.zeros_like(value)
        return 2.0 * amount / self._queued(lambda: torch.neg(value, out=out) if self._is_beside else out.copy_(value))

    def launch(self) -> float:
        value = torch.ones(8, device=self._place)

        def launches() -> None:
            for _ in range(_LAUNCHES):
                torch.add(value, value)

        return self._least(launches) / _LAUNCHES

    def turn(self) -> float:
        def turns() -> None:
            for _ in range(_TURNS):
                pass

        return self._least(turns, waits=False) / _TURNS

    @property
    def _is_beside(self) -> bool:
        return self._place.type != "cpu"

    def _queued(self, call: Callable[[], object]) -> float:
        count = _QUEUED if self._is_beside else 1

        def calls() -> None:
            for _ in range(count):
                call()

        return self._least(calls) / count

    def _least(self, call: Callable[[], object], waits: bool = True) -> float:
        """Seconds of the quickest of a few calls; the first one, which loads libraries, starts the clock."""
        self._run(call, waits)
        if self._end is None:
            self._end = self._clock() + LONGEST_S
        samples = [self._run(call, waits)]
        while (len(samples) < _SAMPLES or sum(samples) < _SLICE_S) and sum(samples) < 2 * _SLICE_S:
            if self.seconds_left <= 0.0:
                break
            samples.append(self._run(call, waits))
        return max(min(samples), 1e-9)

    def _run(self, call: Callable[[], object], waits: bool) -> float:
        begin = self._clock()
        call()
        if waits and self._is_beside:
            torch.get_device_module(self._place.type).synchronize()
        return self._clock() - begin


def _positive(value: Any) -> float:
    number = float(value)
    if not 0.0 < number < math.inf:
        raise ValueError(f"{value!r} is not a positive number")
    return number
