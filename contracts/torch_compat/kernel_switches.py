"""What torch is told of its kernels: how float32 is rounded, and how cuDNN chooses.

Place: part of ``torch_compat``; all of this project reads here how float32 is rounded, and a process that works for
another one takes all of it over.
Invariants: reading never raises, whichever of torch's interfaces the user took: the older getters
(``get_float32_matmul_precision``, ``allow_tf32``) raise once the newer ones (``fp32_precision``) say what the older
cannot. A switch that is as wanted is not touched: setting it to the value that it was born with makes inductor's keys
others.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch

Value = str | bool | list[bool] | None
KernelSwitches = Mapping[str, Value]
"""Switches by name; plain data. ``None`` is what cannot be read."""

_OLDER = "float32_matmul_precision"
_PRECISION = "fp32_precision"
_TF32 = "tf32"
_REDUCTIONS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "cuda.matmul": (_PRECISION, *_REDUCTIONS, "allow_fp16_accumulation"),
    "cudnn": ("enabled", "benchmark", "deterministic", "depthwise_kernel"),
    "cudnn.conv": (_PRECISION,),
    "cudnn.rnn": (_PRECISION,),
    "mkldnn": ("enabled", "deterministic"),
    "mkldnn.matmul": (_PRECISION,),
    "mkldnn.conv": (_PRECISION,),
    "mkldnn.rnn": (_PRECISION,),
}
"""Within ``torch.backends``."""


def rounds_products() -> bool:
    """Whether kernels of GPUs may round the factors of float32 products to TF32."""
    return bool(torch.backends.cuda.matmul.fp32_precision == _TF32)


def rounds_convolutions() -> bool:
    """Whether cuDNN may round the factors of float32 convolutions to TF32."""
    return bool(torch.backends.cudnn.conv.fp32_precision == _TF32)  # type: ignore[attr-defined]


def processor_precision() -> str:
    """What oneDNN may round the factors of float32 products and convolutions to, as part of a fingerprint."""
    onednn: Any = torch.backends.mkldnn
    return f"{_rounding(onednn.matmul)}/{_rounding(onednn.conv)}"


@contextlib.contextmanager
def float32_products(precision: Literal["ieee", "tf32"]) -> Iterator[None]:
    """Products with factors that are rounded so, or not at all; the user's switches hold again afterwards."""
    changed = [
        (owner, owner.fp32_precision)
        for owner in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
        if _rounding(owner) != precision
    ]
    for owner, _ in changed:
        owner.fp32_precision = precision
    try:
        yield
    finally:
        for owner, before in changed:
            owner.fp32_precision = before


def kernel_switches() -> dict[str, Value]:
    """All switches as they are."""
    return {_OLDER: _older(), **{name: _value(owner, attribute) for name, owner, attribute in _switches()}}


def set_kernel_switches(wanted: KernelSwitches) -> None:
    """Set what differs."""
    older = wanted[_OLDER]
    if older is not None and _older() != older:
        torch.set_float32_matmul_precision(str(older))
    for name, owner, attribute in _switches():
        if _value(owner, attribute) != wanted[name]:
            setattr(owner, attribute, wanted[name])


def _rounding(owner: Any) -> str:
    """``none`` is what a setting is born with, and comes to exact products."""
    told = str(owner.fp32_precision)
    return "ieee" if told == "none" else told


def _older() -> str | None:
    """``None`` where the newer interface says what the older cannot."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _switches() -> Iterator[tuple[str, Any, str]]:
    """Those that this torch has."""
    for path, attributes in _NAMES.items():
        owner = functools.reduce(getattr, path.split("."), torch.backends)
        for attribute in attributes:
            if hasattr(owner, attribute):
                yield f"{path}.{attribute}", owner, attribute


def _value(owner: Any, attribute: str) -> Value:
    """A reduction's switch is a pair where it tells reductions within a kernel from those between splits."""
    value, between = getattr(owner, attribute), getattr(owner, f"{attribute}_split_k", None)
    return value if between is None else [value, between]
