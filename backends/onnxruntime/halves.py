"""Which ops ONNX Runtime must not compute over halves.

Place: below the verdicts. Input: an op as it is judged. Output: whether its result may jump where its input was not
rounded. The runtime computes halves in float32 between casts of its own, and drops the cast to halves that stands
between two of its kernels. A result that is continuous in its input is then at most more exact; an index, a mask or a
whole number is another one.
Invariant: an op over float16 or bfloat16 is named here if its result has steps and depends on the values.
"""

from __future__ import annotations

import torch

from mixbackend.contracts import OpView

_HALVES = frozenset({torch.float16, torch.bfloat16})
_STEPS = frozenset(
    f"aten.{name}"
    for name in "floor.default ceil.default round.default trunc.default sign.default floor_divide.default "
    "floor_divide.Scalar div.Tensor_mode div.Scalar_mode fmod.Tensor fmod.Scalar remainder.Tensor remainder.Scalar "
    "threshold.default threshold_backward.default hardtanh_backward.default hardsigmoid_backward.default "
    "hardswish_backward.default leaky_relu_backward.default elu_backward.default nan_to_num.default".split()
)
"""Ops with steps that result in floats."""
_BLIND = frozenset({"factory", "view", "attention"})
"""Classes with results of whole numbers that do not come from the values."""


def steps_over_halves(view: OpView) -> bool:
    """Whether the op reads halves, and a value that was not rounded may take it over a step."""
    if not any(meta.dtype in _HALVES for meta in view.input_tensors):
        return False
    if view.op in _STEPS:
        return True
    whole = any(not meta.dtype.is_floating_point for meta in view.output_tensors)
    return whole and view.op != "getitem" and view.op_class not in _BLIND
