"""The one error of the lowering."""

from __future__ import annotations

from mixbackend.contracts import MixbackendError


class LoweringError(MixbackendError):
    """A region cannot be written as ONNX although its ops were claimed: a fault of the support table."""

    code = "onnx-lowering"
