"""Sessions: an ONNX model ready to be called with tensors.

Place: last step of compiling and of loading.
Input: serialised model, the region's boundary. Output: the ``run`` of a ``CompiledRegion``.
Invariants: no thread of the runtime spins after a call (torch's OpenMP threads live on the same cores); as many threads
as torch has; calls from several threads at once are safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
import onnxruntime
import torch

from mixbackend.backends.onnxruntime.boundary import Entrance, Exit
from mixbackend.backends.onnxruntime.exchange import converter, exchange_plain, exchange_tensor, is_plain, tensor_at
from mixbackend.backends.onnxruntime.kernels import VERSION
from mixbackend.contracts import thread_policy

_SLOW_FUSIONS = ["SkipLayerNormFusion"]
"""Fusions that lose: a sum and a layer norm as one operator took six times as long as the two kernels after another."""
_SINGLE_PRECISION_FUSIONS = ["MatMulScaleFusion", "MatmulTransposeFusion", "QuickGeluFusion"]
"""Optimisations that keep a factor of float64 values as a float32 attribute, or fuse to an operator that older releases
have no float64 kernel for."""

BORROWS = VERSION >= (1, 31)
"""Whether this release reads constants where they lie. Older ones copy those that their optimiser may look at."""


def open_session(
    model: bytes,
    *,
    static: bool,
    doubles: bool,
    names: Sequence[str] = (),
    values: Sequence[torch.Tensor] = (),
    borrow: bool = BORROWS,
    optimized: str = "",
) -> onnxruntime.InferenceSession:
    """A session on the CPU.

    Args:
        model: serialised.
        static: all sizes are known, so the runtime may plan one block of memory for a call.
        doubles: the model computes in float64.
        names, values: of initialisers that the model leaves external, dense. They must live as long as the session.
        borrow: read all of them in place.
        optimized: a file to which the optimised model is written, for people.
    """
    options = onnxruntime.SessionOptions()
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.enable_mem_pattern = static
    options.log_severity_level = 4
    options.optimized_model_filepath = optimized
    _set_threads(options)
    # The options have bare pointers to what this holds.
    held = [] if borrow else [onnxruntime.OrtValue(exchange_tensor(value)) for value in values]
    if held:
        _give(options, model, names, held)
    elif names:
        _lend(options, names, values)
    disabled = [*_SLOW_FUSIONS, *(_SINGLE_PRECISION_FUSIONS if doubles else ())]
    return onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
    )


def _lend(options: onnxruntime.SessionOptions, names: Sequence[str], values: Sequence[torch.Tensor]) -> None:
    """Constants as files with content in memory: optimiser and kernels read them there."""
    files = [value.reshape(-1).view(torch.uint8).numpy() for value in values]
    options.add_external_initializers_from_files_in_memory(list(names), files, [file.nbytes for file in files])
    options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")


def _give(
    options: onnxruntime.SessionOptions, model: bytes, names: Sequence[str], values: Sequence[onnxruntime.OrtValue]
) -> None:
    """Constants as values: once for the optimiser, which copies them, and once so that what it leaves as it is is not
    held twice."""
    options.add_external_initializers(list(names), list(values))
    stay = _left_alone(model, names)
    for name, value in zip(names, values, strict=True):
        if name in stay:
            options.add_initializer(name, value)


_PLACE_OF_WEIGHT = {"Conv": 1, "Gemm": 1, "MatMul": 1, "Gather": 0}


def _left_alone(model: bytes, names: Sequence[str]) -> frozenset[str]:
    """Initialisers to which the optimiser never gives another value under the same name.

    It moves transposes through elementwise operators and transposes what they add or multiply, in place; a value that
    was given for that name would replace the transposed one. The weights of large kernels and tables are folded or
    packed under names of their own, and they are what is worth not copying.
    """
    uses = [
        (name, place == _PLACE_OF_WEIGHT.get(node.op_type, -1))
        for node in onnx.load_model_from_string(model).graph.node
        for place, name in enumerate(node.input)
    ]
    return frozenset(names) - {name for name, is_weight in uses if not is_weight}


def _set_threads(options: onnxruntime.SessionOptions) -> None:
    """As many threads as the policy says; they may spin between the kernels of one call, and none does after it."""
    options.intra_op_num_threads = thread_policy().threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")


Run = Callable[[Sequence[Any]], list[torch.Tensor]]


def runner(
    session: onnxruntime.InferenceSession,
    entrances: Sequence[Entrance],
    exits: Sequence[Exit],
    bound: Sequence[torch.Tensor] | None = None,
) -> Run:
    """The call path: exchange, run, exchange back.

    Args:
        session: opened for the model.
        entrances, exits: the region's boundary.
        bound: constants that the session reads, ``None`` where they are inputs; in a call they are not looked at.
    """
    taken = [(place, item) for place, item in enumerate(entrances) if bound is None or item.kind != "constant"]
    plain = [(place, item.name) for place, item in taken if is_plain(item)]
    others = [(place, item.name, converter(item)) for place, item in taken if not is_plain(item)]
    wanted = [item.name for item in exits]
    results = [(index, item.dtype is torch.bool) for index, item in enumerate(exits)]
    enter = _entry(session)

    # The session has bare pointers to what it reads: this holds the tensors.
    def run(arguments: Sequence[Any], held: Sequence[torch.Tensor] | None = bound) -> list[torch.Tensor]:
        feed = exchange_plain(plain, arguments)
        for place, name, convert in others:
            feed[name] = convert(arguments[place])
        values = enter(feed, wanted)
        return [tensor_at(values, index, is_bool) for index, is_bool in results]

    return run


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
