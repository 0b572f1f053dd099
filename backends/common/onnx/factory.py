"""Tensors made from nothing but sizes and numbers.

Place: a family of the lowering table.
Non-goals: ``empty`` and its relatives: only eager can leave their contents undefined in the same way.
"""

from __future__ import annotations

from typing import Any

import torch

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.dtypes import EVERY, NUMBERS
from mixbackend.backends.common.onnx.shape import requested_sizes
from mixbackend.backends.common.onnx.table import Emitter, enter, lowers
from mixbackend.contracts import NodeRef, OpRule, OpView, Unsupported


def _filled(call: Call, sizes: Value, number: Any) -> Value:
    dtype = call.out.dtype
    if isinstance(number, NodeRef):
        return call.op("Expand", call.number(number, dtype), sizes)
    return call.build.filled(sizes, number, dtype)


def _of_size(number: float | None) -> Emitter:
    def emit(call: Call) -> Value:
        return _filled(
            call, call.sizes(requested_sizes(call, "size")), call.argument("fill_value") if number is None else number
        )

    return emit


def _like(number: float | None) -> Emitter:
    def emit(call: Call) -> Value:
        filler = call.argument("fill_value") if number is None else number
        return _filled(call, call.build.shape(call.tensor("self")), filler)

    return emit


_EVERY = OpRule(dtypes=EVERY)
enter("full new_full", _EVERY, _of_size(None))
enter("zeros new_zeros", _EVERY, _of_size(0))
enter("ones new_ones", _EVERY, _of_size(1))
enter("full_like", _EVERY, _like(None))
enter("zeros_like", _EVERY, _like(0))
enter("ones_like", _EVERY, _like(1))


@lowers("fill.Scalar fill.Tensor", _EVERY)
def _fill(call: Call) -> Value:
    return _filled(call, call.build.shape(call.tensor("self")), call.argument("value"))


@lowers("scalar_tensor", _EVERY)
def _scalar_tensor(call: Call) -> Value:
    return call.number(call.argument("s"), call.out.dtype)


def _whole_range(view: OpView) -> Unsupported | None:
    """Floating ranges computed at run time may round to another length than torch's."""
    if not view.output_tensors[0].dtype.is_floating_point:
        return None
    names = [name for name in ("start", "end", "step") if view.has_argument(name)]
    if any(isinstance(view.argument(name), float) for name in names) and view.output_tensors[0].dynamic:
        return Unsupported("dynamic-shape", "a floating range whose length is known only at run time")
    return None


@lowers("arange arange.start arange.start_step", OpRule(dtypes=NUMBERS, arguments=(_whole_range,)))
def _arange(call: Call) -> Value:
    arguments: dict[str, Any] = dict(call.view.node.arguments)
    start, end, step = arguments.get("start", 0), arguments["end"], arguments.get("step", 1)
    if not any(isinstance(item, NodeRef) for item in (start, end, step)) and not call.out.dynamic:
        return call.build.constant(torch.arange(start, end, step, dtype=call.out.dtype), call.out.dtype)
    numbers = [call.number(item, torch.int64) for item in (start, end, step)]
    return call.build.cast(call.op("Range", *numbers), call.out.dtype)
