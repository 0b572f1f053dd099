"""What torch is told of the precision of products: to be known to, and set in, a process that works for another one.

Place: part of ``torch_compat``. Invariants: a setting that is as wanted is not touched: setting it to the value that it
was born with makes inductor's keys others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

Precision = Mapping[str, str | bool]
"""Settings by name; plain data."""

_OF_GPUS = ("fp32_precision", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
_OF_PROCESSORS = ("fp32_precision",)


def precision_asked() -> dict[str, str | bool]:
    """All settings as they are."""
    fine = {name: getattr(owner, attribute) for name, owner, attribute in _settings()}
    return {"float32": torch.get_float32_matmul_precision(), **fine}


def ask_precision(wanted: Precision) -> None:
    """Set what differs."""
    if torch.get_float32_matmul_precision() != wanted["float32"]:
        torch.set_float32_matmul_precision(str(wanted["float32"]))
    for name, owner, attribute in _settings():
        if getattr(owner, attribute) != wanted[name]:
            setattr(owner, attribute, wanted[name])


def _settings() -> Iterator[tuple[str, Any, str]]:
    for attribute in _OF_GPUS:
        yield f"cuda {attribute}", torch.backends.cuda.matmul, attribute
    for attribute in _OF_PROCESSORS:
        yield f"mkldnn {attribute}", torch.backends.mkldnn.matmul, attribute  # type: ignore[attr-defined]
