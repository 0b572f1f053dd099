"""Sessions: an ONNX model ready to be called with tensors.

Place: last step of compiling and of loading.
Input: serialised model, names and kinds of its inputs. Output: the ``run`` of a ``CompiledRegion``.
Invariants: no thread of the runtime spins after a call (torch's OpenMP threads live on the same cores); as many threads
as torch has; calls from several threads at once are safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnxruntime
import torch

from mixbackend.backends.onnxruntime.exchange import Converter, converters, tensor_at
from mixbackend.contracts import thread_policy

_SINGLE_PRECISION_FUSIONS = ["MatMulScaleFusion", "MatmulTransposeFusion", "QuickGeluFusion"]
"""Optimisations that keep a factor of float64 values as a float32 attribute, or fuse to an operator that older releases
have no float64 kernel for."""


def open_session(model: bytes, *, static: bool, doubles: bool) -> onnxruntime.InferenceSession:
    """A session on the CPU.

    Args:
        model: serialised.
        static: all sizes are known, so the runtime may plan one block of memory for a call.
        doubles: the model computes in float64.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = thread_policy().threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.enable_mem_pattern = static
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    disabled = _SINGLE_PRECISION_FUSIONS if doubles else None
    return onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
    )


Run = Callable[[Sequence[Any]], list[torch.Tensor]]


def runner(
    session: onnxruntime.InferenceSession,
    inputs: Sequence[tuple[str, torch.dtype]],
    kinds: Sequence[str],
    outputs: Sequence[tuple[str, torch.dtype]],
) -> Run:
    """The call path: exchange, run, exchange back."""
    names = [name for name, _ in inputs]
    exchange = converters(inputs, kinds)
    wanted = [name for name, _ in outputs]
    results = [(index, dtype is torch.bool) for index, (_, dtype) in enumerate(outputs)]
    enter = _entry(session)

    def run(arguments: Sequence[Any]) -> list[torch.Tensor]:
        values = enter(_feed(names, exchange, arguments), wanted)
        return [tensor_at(values, index, is_bool) for index, is_bool in results]

    return run


def _feed(names: Sequence[str], exchange: Sequence[Converter], arguments: Sequence[Any]) -> dict[str, Any]:
    return {name: convert(item) for name, convert, item in zip(names, exchange, arguments, strict=True)}


def _entry(session: onnxruntime.InferenceSession) -> Callable[[dict[str, Any], list[str]], Any]:
    """The quickest way into a session that this release has.

    The session's own object takes exchanged values without wrapping each of them; the public method is the fallback.
    """
    inner = getattr(session, "_sess", None)
    direct = getattr(inner, "run_with_ort_values", None)
    if direct is not None:
        return lambda feed, wanted: direct(feed, wanted, None)

    def public(feed: dict[str, Any], wanted: list[str]) -> list[Any]:
        wrapped = {name: onnxruntime.OrtValue(value) for name, value in feed.items()}
        return [value._get_c_value() for value in session.run_with_ort_values(wanted, wrapped)]

    return public
