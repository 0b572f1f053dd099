"""Rates that explain what blocks of real models take.

Place: last step of calibration. Input: rates from probes of single ops, and timed runs of blocks. Output: the rates,
scaled.
Method: a handful of factors per backend (see ``FACTORS``) multiply groups of its rates. Since arithmetic hides traffic,
the estimate of a run is linear in them piece by piece; the partitioner itself tells the coefficients from small steps,
and anew from where these lead. Factors are chosen so that the logarithms of measured over estimated seconds become
small, with Huber's weights against outliers, and with a Gaussian prior on the logarithm of each factor (maximum a
posteriori by Gauss and Newton's method). The prior is what was probed, and where no probe tells, the device: bytes cost
what they cost the device. What hardly any block tells about stays near it, and does not make up for what else is wrong.
Invariants: pure and deterministic; rates of the backend itself only, and not of kernels that it shares with the
reference; no factor leaves its limits.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mixbackend.calibrate.accelerator_rates import with_shared
from mixbackend.calibrate.block_runs import BlockRun
from mixbackend.calibrate.blocks import DTYPE, HALF
from mixbackend.contracts import Backend, BackendRates, DeviceModel
from mixbackend.contracts.rate_rows import BATCHED, CONSTANT, GROUPED
from mixbackend.cost.gpu_costs import MEMORY_SCALES
from mixbackend.partitioner.placement import Placements
from mixbackend.partitioner.roofline import RooflineCostModel

LIMITS = (0.1, 10.0)
_NOISE = 0.06
_OUTLIER = 0.2
"""Residuals above this share count less."""
_STEPS = 60
_DAMPING = 0.5
_FEWEST_RUNS = 3
_SMALL_STEP, _ROUNDS = 1.05, 2
_LEAST_SHARE = 0.01

_HALVES = frozenset({HALF, "bfloat16"})
"""The same units compute both, so that blocks in one tell about both."""

Scale = Callable[[BackendRates, float], BackendRates]


@dataclass(frozen=True)
class Factor:
    """One number that multiplies some seconds of a backend.

    Attributes:
        name: what it is about.
        spread: standard deviation of its logarithm before anything was seen.
        scale: the rates with these seconds multiplied.
        limits: of the factor, by the rates that it is fitted to.
    """

    name: str
    spread: float
    scale: Scale
    limits: Callable[[BackendRates], tuple[float, float]] = lambda rates: LIMITS


def _arithmetic(dtypes: frozenset[str], prefix: str, without: tuple[str, ...] = ()) -> Scale:
    """Scales the arithmetic of rows that begin so, but for some; other dtypes have kernels that no block ran."""

    def scale(rates: BackendRates, factor: float) -> BackendRates:
        rows = (
            (row, dtype, replace(rate, flops_per_s=rate.flops_per_s / factor) if mine(row, dtype) else rate)
            for row, dtype, rate in rates.rates
        )
        return replace(rates, rates=tuple(rows))

    def mine(row: str, dtype: str) -> bool:
        return dtype in dtypes and row.startswith(prefix) and not any(row.startswith(other) for other in without)

    return scale


def _live(rates: BackendRates, factor: float) -> BackendRates:
    """Scales products and convolutions with weights that may not be packed ahead."""
    rows = (
        (row, dtype, replace(rate, flops_per_s=rate.flops_per_s / factor) if is_live(row) and dtype == DTYPE else rate)
        for row, dtype, rate in rates.rates
    )
    return replace(rates, rates=tuple(rows))


def is_live(row: str) -> bool:
    """Whether a row is of ops with a weight of their own that changes from call to call."""
    op_class, *qualifiers = row.split("/")
    return op_class in ("matmul", "convolution") and not {CONSTANT, BATCHED, GROUPED}.intersection(qualifiers)


def _overheads(rates: BackendRates, factor: float) -> BackendRates:
    rows = ((row, dtype, replace(rate, overhead_s=rate.overhead_s * factor)) for row, dtype, rate in rates.rates)
    return replace(rates, rates=tuple(rows))


def _kinds(dtypes: frozenset[str], label: str = "", share: float = 1.0) -> tuple[Factor, ...]:
    libraries = ("matmul", "convolution", "attention")
    return (
        Factor(f"{label}products", 0.3 * share, _arithmetic(dtypes, "matmul")),
        Factor(f"{label}convolutions", 0.5 * share, _arithmetic(dtypes, "convolution", ("convolution/grouped",))),
        Factor(f"{label}depthwise", 0.7 * share, _arithmetic(dtypes, "convolution/grouped")),
        Factor(f"{label}attention", 0.5 * share, _arithmetic(dtypes, "attention")),
        Factor(f"{label}loops", 0.7 * share, _arithmetic(dtypes, "", libraries)),
    )


def _entry(rates: BackendRates, factor: float) -> BackendRates:
    return replace(rates, entry_s=rates.entry_s * factor)


def _memory(rates: BackendRates, factor: float) -> BackendRates:
    return replace(rates, memory_scale=rates.memory_scale * factor)


def _weights(rates: BackendRates, factor: float) -> BackendRates:
    return replace(rates, weight_scale=rates.weight_scale * factor)


def _within(scales: tuple[float, float], scale: float) -> tuple[float, float]:
    """Limits of a factor on a scale; 1 is always within."""
    return min(scales[0] / scale, 1.0), max(scales[1] / scale, 1.0)


FACTORS: tuple[Factor, ...] = (
    Factor("entry", 0.5, _entry),
    Factor("switch", 1.0, lambda rates, factor: replace(rates, switch_s=rates.switch_s * factor)),
    Factor("memory", 0.35, _memory),
    Factor("weights", 0.5, _weights),
    Factor("overhead", 0.3, _overheads),
    Factor("live", 0.3, _live),
    *_kinds(frozenset({DTYPE}), share=0.6),
)
ACCELERATOR_FACTORS: tuple[Factor, ...] = (
    Factor("entry", 0.5, _entry),
    Factor("memory", 0.2, _memory, lambda rates: _within(MEMORY_SCALES, rates.memory_scale)),
    Factor("weights", 0.2, _weights, lambda rates: _within(MEMORY_SCALES, rates.weight_scale)),
    Factor("overhead", 0.3, _overheads),
    *_kinds(frozenset({DTYPE}), share=0.5),
    *_kinds(_HALVES, "half ", share=0.5),
)
"""With those of blocks in half precision. An accelerator times its own kernels, so that probes tell rates well, and few
blocks fit into its time: what they tell moves little."""


@dataclass(frozen=True)
class Fit:
    """Fitted rates.

    Attributes:
        rates: of the backend.
        factors: by name.
        error_before, error_after: median of how far estimates are off, as a share of what was measured.
    """

    rates: BackendRates
    factors: Mapping[str, float]
    error_before: float
    error_after: float

    def __str__(self) -> str:
        moved = ", ".join(f"{name} x{value:.2f}" for name, value in self.factors.items() if abs(value - 1.0) > 0.05)
        return (
            f"blocks of models were estimated {self.error_before:.0%} off, now {self.error_after:.0%} "
            f"({moved or 'nothing changed'})"
        )


def fit(
    runs: Sequence[BlockRun], backends: Sequence[Backend], device: DeviceModel, rates: Mapping[str, BackendRates]
) -> Fit | None:
    """Fit the rates of the first backend.

    Args:
        runs: of the first backend, with the others filling in.
        backends: that ran them.
        device: where.
        rates: of all of them, by name.

    Returns:
        ``None`` if there are too few runs to tell anything.
    """
    if len(runs) < _FEWEST_RUNS:
        return None
    name = backends[0].name
    beside = device.place.type != "cpu"
    factors = ACCELERATOR_FACTORS if beside else FACTORS
    shared = backends[0].traits().shared_rows if beside and len(backends) > 1 else frozenset()
    own = with_shared(rates[name], rates[name], shared)
    limits = np.log([factor.limits(own) for factor in factors])
    placements = [Placements(run.graph, backends) for run in runs]

    def scaled(before: BackendRates, factor: Factor, value: float) -> BackendRates:
        return with_shared(factor.scale(before, value), own, shared)

    def estimates(mine: BackendRates) -> np.ndarray:
        costs = RooflineCostModel(device, {**rates, name: mine})
        return np.array([item.seconds(run.plan, costs) for item, run in zip(placements, runs, strict=True)])

    measured = np.array([run.seconds for run in runs])
    before = base = estimates(own)
    found, fitted = np.ones(len(factors)), own
    for _ in range(_ROUNDS):
        changed = [scaled(fitted, factor, _SMALL_STEP) for factor in factors]
        columns = [(estimates(item) - base) / (_SMALL_STEP - 1.0) if item != fitted else 0.0 * base for item in changed]
        found = _solve(factors, limits, found, measured, base, np.stack(columns, axis=1))
        fitted = own
        for factor, value in zip(factors, found, strict=True):
            fitted = scaled(fitted, factor, float(value))
        base = estimates(fitted)
    return Fit(
        fitted,
        {factor.name: float(value) for factor, value in zip(factors, found, strict=True)},
        _median_error(measured, before),
        _median_error(measured, base),
    )


def _solve(
    factors: Sequence[Factor],
    limits: np.ndarray,
    begin: np.ndarray,
    measured: np.ndarray,
    base: np.ndarray,
    shares: np.ndarray,
) -> np.ndarray:
    """The factors; ``shares`` is what each contributes to each estimate where they begin, which is ``base`` there.

    A factor that contributes nothing anywhere stays where it began.
    """
    precision = np.diag([1.0 / factor.spread**2 for factor in factors])
    low, high = limits.T
    logarithms = np.log(begin)
    for _ in range(_STEPS):
        values = np.exp(logarithms) / begin
        # Far from where they were told, coefficients may lead to what seconds cannot be.
        estimated = np.maximum(base + shares @ (values - 1.0), _LEAST_SHARE * base)
        slopes = shares * values / estimated[:, None]
        residuals = np.log(measured / estimated)
        weights = np.minimum(1.0, _OUTLIER / np.maximum(np.abs(residuals), 1e-12)) / _NOISE**2
        weighted = slopes * weights[:, None]
        step = np.linalg.solve(weighted.T @ slopes + precision, weighted.T @ residuals - precision @ logarithms)
        logarithms = np.clip(logarithms + _DAMPING * step, low, high)
    return np.exp(logarithms)


def _median_error(measured: np.ndarray, estimated: np.ndarray) -> float:
    return statistics.median(np.abs(estimated - measured) / measured)
