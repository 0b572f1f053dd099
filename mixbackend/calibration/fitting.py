"""Rates that explain what blocks of real models take.

Place: last step of calibration. Input: rates from probes of single ops, and timed runs of blocks. Output: the rates,
scaled.
Method: a handful of factors per backend (see ``FACTORS``) multiply groups of its rates; the estimate of a run is linear
in them, and the partitioner itself tells the coefficients. Factors are chosen so that the logarithms of measured over
estimated seconds become small, with Huber's weights against outliers, and with a Gaussian prior on the logarithm of
each factor, which keeps what no block tells about (maximum a posteriori by Gauss and Newton's method).
Invariants: pure and deterministic; rates of the backend itself only; no factor leaves ``LIMITS``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mixbackend.calibration.block_runs import BlockRun
from mixbackend.calibration.blocks import DTYPE, HALF
from mixbackend.contracts import Backend, BackendRates, DeviceModel
from mixbackend.partitioner.appraise import appraise
from mixbackend.partitioner.roofline import RooflineCostModel

LIMITS = (0.1, 10.0)
_NOISE = 0.06
_OUTLIER = 0.2
"""Residuals above this share count less."""
_STEPS = 60
_DAMPING = 0.5
_FEWEST_RUNS = 3

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
    """

    name: str
    spread: float
    scale: Scale


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


def _overheads(rates: BackendRates, factor: float) -> BackendRates:
    rows = ((row, dtype, replace(rate, overhead_s=rate.overhead_s * factor)) for row, dtype, rate in rates.rates)
    return replace(rates, rates=tuple(rows))


def _kinds(dtypes: frozenset[str], label: str = "") -> tuple[Factor, ...]:
    libraries = ("matmul", "convolution", "attention")
    return (
        Factor(f"{label}products", 0.3, _arithmetic(dtypes, "matmul")),
        Factor(f"{label}convolutions", 0.5, _arithmetic(dtypes, "convolution", ("convolution/grouped",))),
        Factor(f"{label}depthwise", 0.7, _arithmetic(dtypes, "convolution/grouped")),
        Factor(f"{label}attention", 0.5, _arithmetic(dtypes, "attention")),
        Factor(f"{label}loops", 0.7, _arithmetic(dtypes, "", libraries)),
    )


FACTORS: tuple[Factor, ...] = (
    Factor("entry", 1.0, lambda rates, factor: replace(rates, entry_s=rates.entry_s * factor)),
    Factor("switch", 1.5, lambda rates, factor: replace(rates, switch_s=rates.switch_s * factor)),
    Factor("memory", 1.0, lambda rates, factor: replace(rates, memory_scale=rates.memory_scale * factor)),
    Factor("weights", 1.0, lambda rates, factor: replace(rates, weight_scale=rates.weight_scale * factor)),
    Factor("overhead", 0.5, _overheads),
    *_kinds(frozenset({DTYPE})),
)
ACCELERATOR_FACTORS: tuple[Factor, ...] = (*FACTORS, *_kinds(_HALVES, "half "))
"""With those of blocks in half precision."""


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
        backends: who ran them.
        device: where.
        rates: of all of them, by name.

    Returns:
        ``None`` if there are too few runs to tell anything.
    """
    if len(runs) < _FEWEST_RUNS:
        return None
    name = backends[0].name
    own = rates[name]
    factors = FACTORS if device.place.type == "cpu" else ACCELERATOR_FACTORS

    def estimates(mine: BackendRates) -> np.ndarray:
        costs = RooflineCostModel(device, {**rates, name: mine})
        return np.array([appraise(run.graph, [run.plan], backends, costs).seconds[0] for run in runs], dtype=float)

    measured = np.array([run.seconds for run in runs])
    base = estimates(own)
    shares = np.stack([estimates(factor.scale(own, 2.0)) - base for factor in factors], axis=1)
    found = _solve(factors, measured, base, shares)
    fitted = own
    for factor, value in zip(factors, found, strict=True):
        fitted = factor.scale(fitted, float(value))
    return Fit(
        fitted,
        {factor.name: float(value) for factor, value in zip(factors, found, strict=True)},
        _median_error(measured, base),
        _median_error(measured, base + shares @ (found - 1.0)),
    )


def _solve(factors: Sequence[Factor], measured: np.ndarray, base: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The factors; ``shares`` is what each contributes to each estimate at 1.

    A factor that contributes nothing anywhere stays at 1.
    """
    precision = np.diag([1.0 / factor.spread**2 for factor in factors])
    low, high = np.log(LIMITS)
    logarithms = np.zeros(len(factors))
    for _ in range(_STEPS):
        values = np.exp(logarithms)
        estimated = base + shares @ (values - 1.0)
        slopes = shares * values / estimated[:, None]
        residuals = np.log(measured / estimated)
        weights = np.minimum(1.0, _OUTLIER / np.maximum(np.abs(residuals), 1e-12)) / _NOISE**2
        weighted = slopes * weights[:, None]
        step = np.linalg.solve(weighted.T @ slopes + precision, weighted.T @ residuals - precision @ logarithms)
        logarithms = np.clip(logarithms + _DAMPING * step, low, high)
    return np.exp(logarithms)


def _median_error(measured: np.ndarray, estimated: np.ndarray) -> float:
    return statistics.median(np.abs(estimated - measured) / measured)
