"""Later calls: the same values, changed values in the same memory, other strides, parameters, one tensor twice."""

from __future__ import annotations

import torch

from mixbackend.certify.tested import NotAsked, Problem, Tested, eager_refuses, named
from mixbackend.certify.variants import one_for_all, other_strides, other_values

_WAYS = ("reversed", "gaps")


def repeated(tested: Tested) -> Problem | None:
    """The second call is as right as the first."""
    return named("repeated", tested.judged(tested.inputs()), "in a second call")


def updated_inputs(tested: Tested) -> Problem | None:
    """Values that were written into the same memory, as an optimizer does, are those of the next call."""
    region, inputs = tested.region, tested.inputs()
    changed = other_values(region, inputs)
    if changed is None or any(_repeats(value) for value in inputs):
        raise NotAsked("its values cannot be changed")
    if refusal := eager_refuses(region, changed):
        raise NotAsked(f"eager refuses other values: {refusal}")
    tested.call(inputs)
    for value, new in zip(inputs, changed, strict=True):
        if isinstance(value, torch.Tensor):
            value.data.copy_(new)  # no version counts this, as no version counts what another library writes
    return named("updated inputs", tested.judged(inputs), "after its inputs were updated in place")


def strides(tested: Tested) -> Problem | None:
    """Inputs of the traced shape may lie in any way."""
    if tested.backend.traits().exact_input_strides:
        raise NotAsked("it relies on the traced strides, by its traits")
    if any(view.node.wants_traced_strides for view in tested.region.views) or tested.random:
        raise NotAsked("strides decide what eager computes")
    asked = False
    for way in _WAYS:
        inputs = other_strides(tested.region, tested.case.inputs, way)
        if inputs is None or eager_refuses(tested.region, inputs):
            continue
        asked = True
        if problem := named("strides", tested.judged(inputs), f"with inputs laid out with {way} dimensions"):
            return problem
    if not asked:
        raise NotAsked("its inputs have one layout")
    return None


def parameters(tested: Tested) -> Problem | None:
    """Inputs may be parameters that want gradients; the region's results want none."""
    region = tested.region
    if region.written:
        raise NotAsked("what is written is no parameter")
    inputs = tested.inputs()
    floating = [isinstance(value, torch.Tensor) and value.is_floating_point() for value in inputs]
    if not any(floating):
        raise NotAsked("no input is a floating tensor")
    pairs = zip(floating, inputs, strict=True)
    given = [torch.nn.Parameter(value) if is_floating else value for is_floating, value in pairs]
    return named("parameters", tested.judged(given), "where inputs are parameters")


def one_tensor_twice(tested: Tested) -> Problem | None:
    """Two inputs may be one tensor."""
    inputs = one_for_all(tested.region, tested.case.inputs)
    if inputs is None or eager_refuses(tested.region, inputs):
        raise NotAsked("no two inputs can be one tensor")
    return named("one tensor twice", tested.judged(inputs), "where several inputs are one tensor")


def _repeats(value: object) -> bool:
    """Whether elements of it share memory: then they cannot be written apart."""
    if not isinstance(value, torch.Tensor):
        return False
    return any(step == 0 and size > 1 for size, step in zip(value.shape, value.stride(), strict=True))
