"""A shipped table scaled by the look at this machine.

Place: between ``rate_tables`` and the cost model. Input: a family's machines, this machine's look. Output: the device
and rates of backends as they are assumed here, with their errors.
Method: the nearest machine of the family (its maker, its number of threads) was looked at in the same way. Arithmetic
is scaled by the products of its dtype, bytes by the copy, the processor's own seconds by the eager launch or the loop
of Python. This holds for all backends alike, so that which one is quicker than another is what was measured there. In
float32 on processors two libraries were looked at: products of torch's BLAS are scaled by that of BLAS, all other
arithmetic by that of oneDNN; a table that knows of one alone is taken to have both as quick.
Invariants: pure; nothing assumed here counts as probed. A product that is out of proportion to the loop of Python was
disturbed: then arithmetic is scaled by the loop and the cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mixbackend.contracts import BackendRates, DeviceModel, HostRates, OpRate
from mixbackend.cost.look import Look
from mixbackend.cost.rate_tables import Machine, major

OTHER_VERSION, OTHER_PRODUCT = 2.0, 2.0
"""Times the error, where the library is of another version than in the table, and where the machine is another."""
_MEMORY = (0.5, 2.0)
"""Limits of how many times as fast a processor's memory is: programs that compute beside the look take most from the
copy."""
_DISTURBED = 4.0
"""Products are disturbed where they are so many times off what the loop of Python lets expect."""


@dataclass(frozen=True)
class Scaled:
    """A machine of a table, as fast as this one.

    Attributes:
        machine: of the table.
        device: this one, as it is assumed to be.
        settled: whether the look was in proportion; if not, other programs disturbed it.
    """

    machine: Machine
    device: DeviceModel
    settled: bool
    _arithmetic: dict[str, float]
    _onednn: float
    _launch: float
    _python: float

    def rates(
        self, backend: str, version: str, dtypes: Iterable[str] = ("float32",), calls_blas: bool = False
    ) -> BackendRates | None:
        """Rates of a backend, with their error for a graph with these dtypes; ``None`` where the table has none.

        Args:
            backend: its name.
            version: of its library.
            dtypes: of the graph.
            calls_blas: whether its products are those of torch's BLAS.
        """
        entry = self.machine.entry(backend)
        if entry is None:
            return None
        rates, doubts = entry.rates, 1.0
        doubts *= 1.0 if major(entry.version) == major(version) else OTHER_VERSION
        doubts *= 1.0 if self.machine.product == self.device.device.partition(" ")[2] else OTHER_PRODUCT
        return replace(
            rates,
            entry_s=rates.entry_s * self._python,
            crossing_s=rates.crossing_s * self._python,
            switch_s=rates.switch_s * self._python,
            rates=tuple(
                (row, dtype, self._rate(rate, dtype, calls_blas and is_product(row)))
                for row, dtype, rate in rates.rates
            ),
            host=None if rates.host is None else self._host(rates.host),
            error=entry.error_of(dtypes) * doubts,
        )

    def through_blas(self, prior: BackendRates) -> BackendRates:
        """A prior, which goes by the device's peak, with products as much slower or faster as torch's BLAS is here."""
        factor = self._arithmetic["float32"] / self._onednn
        rows = tuple(
            (row, dtype, replace(rate, flops_per_s=factor * rate.flops_per_s))
            if dtype == "float32" and is_product(row)
            else (row, dtype, rate)
            for row, dtype, rate in prior.rates
        )
        return replace(prior, rates=rows)

    def _rate(self, rate: OpRate, dtype: str, blas: bool) -> OpRate:
        arithmetic = self._arithmetic["float32"] if blas else self._onednn
        if dtype != "float32":
            arithmetic = self._arithmetic.get(dtype, arithmetic)
        beside = self.device.place.type != "cpu"
        # On an accelerator the pause between kernels is its own, whatever the processor is like.
        overhead = rate.overhead_s * (1.0 if beside else self._launch)
        return replace(rate, overhead_s=overhead, flops_per_s=rate.flops_per_s * arithmetic)

    def _host(self, host: HostRates) -> HostRates:
        rows = tuple((row, seconds * self._launch) for row, seconds in host.rows)
        return HostRates(host.entry_s * self._python, host.crossing_s * self._python, host.op_s * self._launch, rows)


def nearest(machines: Sequence[Machine], device_name: str, maker: str, threads: int) -> Machine | None:
    """The machine of a family with the rates that hold best here: this very product, one that was measured, the same
    maker's, about as many threads."""
    product = device_name.partition(" ")[2]

    def distance(machine: Machine) -> tuple[bool, bool, bool, float]:
        steps = abs(math.log(max(machine.device.threads, 1) / max(threads, 1)))
        return machine.product != product, machine.mark != "measured", machine.maker != maker, steps

    return min(machines, key=distance, default=None)


def scaled(machine: Machine, look: Look, device_name: str, threads: int) -> Scaled:
    """A machine of a table as this one.

    Args:
        machine: see ``nearest``.
        look: at this machine.
        device_name, threads: of this machine.
    """
    then = machine.look
    python = look.python_s / then.python_s
    arithmetic, onednn, settled = _arithmetic(look, then, look.cores / then.cores / python)
    launch = look.launch_s / then.launch_s
    device = machine.device
    memory = look.copy_bytes_per_s / then.copy_bytes_per_s if settled else 1.0
    if device.place.type == "cpu":
        memory = min(max(memory, _MEMORY[0]), _MEMORY[1])
    peaks = {**arithmetic, "float32": onednn}
    flops = tuple((dtype, rate * peaks.get(dtype, onednn)) for dtype, rate in device.flops_per_s)
    here = replace(
        device,
        device=device_name,
        flops_per_s=flops,
        bytes_per_s=device.bytes_per_s * memory,
        cache_bytes=device.cache_bytes * (look.cores / then.cores if device.place.type == "cpu" else 1.0),
        cache_bytes_per_s=device.cache_bytes_per_s * memory,
        launch_s=device.launch_s * launch,
        threads=threads,
        provenance="prior",
    )
    return Scaled(machine, here, settled, arithmetic, onednn, launch, python)


def is_product(row: str) -> bool:
    """Whether a row of the rate tables is of products that torch's kernels give to BLAS."""
    return row.partition("/")[0] in ("matmul", "attention")


def _arithmetic(look: Look, then: Look, expected: float) -> tuple[dict[str, float], float, bool]:
    """How many times as fast products are, by dtype, and through oneDNN, and whether that can be."""
    seen = {dtype: rate / then.products[dtype] for dtype, rate in look.products.items() if dtype in then.products}
    onednn = seen["float32"]
    if look.onednn_flops_per_s is not None:
        onednn = look.onednn_flops_per_s / (then.onednn_flops_per_s or then.products["float32"])
    if any(max(factor / expected, expected / factor) > _DISTURBED for factor in (seen["float32"], onednn)):
        return {"float32": expected}, expected, False
    return seen, onednn, True
