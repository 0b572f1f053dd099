"""What holds of accelerators alone: what calls cost the processor, two types of 16 bits that are probed as one, and
kernels that several backends call.

Place: below ``backend_rates``. Input: seconds of structural probes that were called one by one (their work is next to
nothing, so that only queueing shows); rates probed in float16; the reference's rates. Output: ``HostRates``; the rates
of bfloat16; rates of kernels that are the reference's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from mixbackend.calibrate.structural import fixed_seconds
from mixbackend.contracts import BackendRates, DeviceModel, HostRates
from mixbackend.contracts.rate_rows import UNALIGNED, wider_rows
from mixbackend.cost.unfinished import Fixed

_HALVES = ("float16", "bfloat16")


def host_rates(prior: HostRates | None, known: Mapping[str, float], fused: Collection[tuple[str, str]]) -> HostRates:
    """What calls cost the processor. Of fused loops a chain is one kernel, which tells nothing of an op."""
    if prior is None:
        raise ValueError("the prior of an accelerator says what calls cost the processor")
    op = prior.op_s
    found = fixed_seconds(
        known, Fixed(prior.entry_s, prior.crossing_s, op, prior.op("matmul"), prior.op("convolution"))
    )
    rows = dict(prior.rows)
    if {"product", "products"} <= set(known):
        rows["matmul"] = found.product_s
    if {"convolution", "convolutions"} <= set(known):
        rows["convolution"] = found.convolution_s
    loop = op if ("pointwise", "pointwise") in fused else found.loop_s
    return HostRates(found.entry_s, found.crossing_s, loop, tuple(rows.items()))


def is_shared(row: str, shared: Collection[str]) -> bool:
    """Whether a row, or one that it is part of, is among those shared with the reference (``Traits.shared_rows``).

    Unaligned products have to be named: some backends that call the reference's kernels pad them before.
    """
    rows = (wider for wider in wider_rows(row) if UNALIGNED not in row.split("/") or UNALIGNED in wider.split("/"))
    return any(wider in shared for wider in rows)


def with_shared(rates: BackendRates, reference: BackendRates, shared: Collection[str]) -> BackendRates:
    """Rates with those of the reference's kernels as they were found for the reference: what two backends call is as
    fast in both, however the probes of each came out."""
    own = (item for item in rates.rates if not is_shared(item[0], shared))
    theirs = (item for item in reference.rates if is_shared(item[0], shared))
    return replace(rates, rates=(*own, *theirs))


def with_other_half(rates: BackendRates, device: DeviceModel) -> BackendRates:
    """What was probed in float16 holds for bfloat16 as well, by the peaks of both."""
    first, second = _HALVES
    share = device.peak(second) / device.peak(first)
    probed = {row: rate for row, dtype, rate in rates.rates if dtype == first and rate.provenance == "probed"}
    own = {row for row, dtype, rate in rates.rates if dtype == second and rate.provenance == "probed"}
    others = {
        (row, second): replace(rate, flops_per_s=share * rate.flops_per_s if _by_units(row) else rate.flops_per_s)
        for row, rate in probed.items()
        if row not in own
    }
    kept = {(row, dtype): rate for row, dtype, rate in rates.rates}
    return replace(rates, rates=tuple((row, dtype, rate) for (row, dtype), rate in {**kept, **others}.items()))


def _by_units(row: str) -> bool:
    """Whether the units for products decide, which have a peak per type."""
    return row.partition("/")[0] in ("matmul", "convolution", "attention")
