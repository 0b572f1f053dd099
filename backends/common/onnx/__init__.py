"""ATen to ONNX: one table of rules and emitters, shared by every backend that compiles ONNX.

Place: under the ONNX Runtime backend (and others to come). ``TABLE`` gives verdicts, ``lower_region`` gives models.
"""

from mixbackend.backends.common.onnx import (  # noqa: F401 - each import enters its family into the table
    activation,
    attention,
    comparison,
    convolution,
    factory,
    index,
    loss,
    matrix,
    normalization,
    pointwise,
    pooling,
    reduction,
    shape,
    softmax,
)
from mixbackend.backends.common.onnx.builder import Target
from mixbackend.backends.common.onnx.errors import LoweringError
from mixbackend.backends.common.onnx.region import LoweredRegion, lower_region
from mixbackend.backends.common.onnx.storage import stored_order
from mixbackend.backends.common.onnx.table import TABLE, Lowering

__all__ = ["TABLE", "LoweredRegion", "Lowering", "LoweringError", "Target", "lower_region", "stored_order"]
