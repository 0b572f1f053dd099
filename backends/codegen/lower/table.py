"""All lowering rules, imported for their registration.

Place: imported once by the backend; the order of modules does not matter, since no operator has two rules.
"""

from __future__ import annotations

from mixbackend.backends.codegen.lower import (  # noqa: F401
    activation,
    activation_backward,
    attention,
    batch_norm,
    batch_norm_backward,
    comparison,
    concatenate,
    conversion,
    convolution,
    cross_product,
    elementary,
    embedding,
    factory,
    indexing,
    int4_products,
    likelihood,
    loss,
    normalization,
    normalization_backward,
    padding,
    pointwise,
    pooling,
    pooling_backward,
    products,
    random_numbers,
    reduction,
    reshaping,
    scan,
    scatter,
    softmax,
    unfold,
    upsample_linear,
    upsample_nearest,
    variance,
    view_updates,
)
from mixbackend.backends.codegen.lower.region import lower_region
from mixbackend.backends.codegen.lower.rules import RULES

__all__ = ["RULES", "lower_region"]
