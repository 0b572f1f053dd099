"""Verify: hold what a region returned, and what it wrote into its inputs, against eager and a float64 reference.

Place: around a region's first call (or sampled, or every call), between the backend's code and the rest of the graph.
Input: a region, the inputs of one call as they were before it, the outputs its owner gave and the inputs it wrote; for
regions that draw random numbers, the state of torch's generators before the call.
Output: a ``Check``: right, the first deviation (inputs that were written count after the outputs), or why it cannot
be told.
Invariants: nothing is raised into the caller, whatever goes wrong; torch's random state is what it was; inputs are not
changed; nothing is kept.
Non-goals: deciding what happens to a wrong region, see ``runtime.slots``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import ErrorBudget, OpTag, Region, op_class_of
from mixbackend.contracts.numerics import Deviation, find_deviation
from mixbackend.contracts.torch_compat import warned_at_most
from mixbackend.runtime.rounding import NEAREST, RandomRounding

BYTE_CAP = 2 * 1024**3
"""Above this many bytes of inputs and outputs the reference is eager's own result; on a GPU, above a share of its free
memory."""
_SHARE_OF_FREE = 1 / 16
"""Float64 takes four times what 16 bits take, and there are values in between."""
_KEPT_BYTES = 256 << 20
"""Of a GPU's memory: what torch may keep of what verifying a region took."""
_ROUGH_UNITS = 4.0
"""Where eager's own error is not known: so many units of the coarsest type that a region computes in."""

TF32_FLOOR = 2.0**14
"""In units of float32's epsilon: what rounding the factors to TF32 may do to a result, where torch's flags allow it and
eager happens to take a kernel that does not."""

_DRAWS = 4
"""Of rounding noise, where a result seems wrong."""
_MEASURED = ("rms", "max")

_NARROW = (torch.float16, torch.bfloat16, torch.float32)
_STATES_OF_ATTENTION = 2
"""Results of attention from this place on are no values: what the backward needs of shapes and random numbers."""


def may_round_to_tf32(region: Region) -> bool:
    """Whether torch's flags let kernels of the region round float32 factors to TF32."""
    allowed = {"matmul": torch.get_float32_matmul_precision() != "highest"}
    allowed |= {"convolution": torch.backends.cudnn.allow_tf32, "attention": allowed["matmul"]}
    return any(
        allowed.get(view.op_class, False)
        and any(meta.device.type == "cuda" and meta.dtype is torch.float32 for meta in view.input_tensors)
        for view in region.views
    )


def before_writing(region: Region, inputs: Sequence[Any]) -> list[Any]:
    """The inputs, with those that the region writes into replaced by copies of what they hold now."""
    copies = list(inputs)
    with torch.no_grad():
        for place in region.written:
            copies[place] = inputs[place].clone()
    return copies


RandomStates = Sequence[tuple[int, torch.Tensor]]
"""Of generators of GPUs, by number."""


def random_states(region: Region) -> RandomStates:
    """States of the generators that a region draws from; nothing where it draws nothing, or on the processor."""
    if not any(OpTag.RANDOM in view.node.tags for view in region.views):
        return ()
    metas = [meta for view in region.views for meta in view.output_tensors if meta.device.type == "cuda"]
    gpus = {torch.cuda.current_device() if meta.device.index is None else meta.device.index for meta in metas}
    return [(gpu, torch.cuda.get_rng_state(gpu)) for gpu in sorted(gpus)]


def set_random_states(states: RandomStates) -> None:
    """Let the generators draw once more what they drew from there on."""
    for gpu, state in states:
        torch.cuda.set_rng_state(state, gpu)


def eager_result(region: Region, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """What eager returns for a region."""
    return tuple(region.graph_module.forward(*inputs))


@dataclass(frozen=True, slots=True)
class Check:
    """What holding one call of a region against eager has shown: right where both fields are empty.

    Attributes:
        deviation: the first one beyond the budget.
        unknown: why it cannot be told whether the call was right, in words.
    """

    deviation: Deviation | None = None
    unknown: str = ""

    @property
    def right(self) -> bool:
        """Whether the call was compared, and no deviation was found."""
        return self.deviation is None and not self.unknown


def check_region(
    region: Region,
    inputs: Sequence[Any],
    outputs: Sequence[torch.Tensor],
    budget: ErrorBudget,
    written: Sequence[torch.Tensor] = (),
    states: RandomStates = (),
) -> Check:
    """Hold a call against eager and float64; raises nothing.

    Args:
        inputs: as they were before the call.
        outputs: what the call returned.
        written: the inputs at ``region.written``, as they are after it.
        states: of the generators before the call.
    """
    try:
        return Check(_watched_deviation(region, inputs, outputs, budget, written, states))
    except Exception as error:
        # Whatever it is, it is the check's: the user's call has its result already.
        return Check(unknown=f"the check failed: {type(error).__name__}: {error}")


def _watched_deviation(
    region: Region,
    inputs: Sequence[Any],
    outputs: Sequence[torch.Tensor],
    budget: ErrorBudget,
    written: Sequence[torch.Tensor],
    states: RandomStates,
) -> Deviation | None:
    """The first deviation; on a GPU, memory that only this took is given back."""
    gpus = sorted({*_gpus(inputs), *_gpus(outputs), *(gpu for gpu, _ in states)})
    before = sum(map(torch.cuda.memory_reserved, gpus))
    with warned_at_most():
        deviation = _first_deviation(region, inputs, outputs, budget, written, states)
    if sum(map(torch.cuda.memory_reserved, gpus)) - before > _KEPT_BYTES:
        # Float64 values are needed once: what torch keeps for later is missed by everybody else.
        torch.cuda.empty_cache()
    return deviation


def _first_deviation(
    region: Region,
    inputs: Sequence[Any],
    outputs: Sequence[torch.Tensor],
    budget: ErrorBudget,
    written: Sequence[torch.Tensor],
    states: RandomStates,
) -> Deviation | None:
    with torch.no_grad(), torch.random.fork_rng(sorted({*_gpus(inputs), *(gpu for gpu, _ in states)})):
        if len(outputs) != len(region.outputs):
            return Deviation(min(len(outputs), len(region.outputs)), float("inf"), 0.0, 0.0, "shape")
        own = before_writing(region, inputs)
        set_random_states(states)
        eager = (*eager_result(region, own), *(own[place] for place in region.written))
        own_reference = _too_large(inputs, eager)
        set_random_states(states)
        reference = eager if own_reference else _reference(region, inputs, eager)
        unit = _coarsest_unit(region) if own_reference else 0.0
        meaningless = _meaningless_outputs(region)
        noise: Sequence[torch.Tensor] | None = None
        for index, (result, expected, exact) in enumerate(zip((*outputs, *written), eager, reference, strict=True)):
            if index in meaningless:
                continue
            rough = _roughened(budget, expected, unit)
            deviation = find_deviation(index, result, expected, exact, rough)
            if deviation is None:
                continue
            if noise is None and deviation.measure in _MEASURED and not own_reference:
                noise = _rounding_noise(region, inputs, eager, reference, states)
            if noise is not None:
                deviation = find_deviation(index, result, expected, exact, rough, noise[index])
            if deviation is not None:
                return deviation
    return None


def reference_result(
    region: Region, inputs: Sequence[Any], eager: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """A region's result computed in float64; eager's own where an operator has no float64 kernel."""
    return _reference(region, inputs, eager)[: len(region.outputs)]


def _rounding_noise(
    region: Region,
    inputs: Sequence[Any],
    eager: tuple[torch.Tensor, ...],
    reference: Sequence[torch.Tensor],
    states: RandomStates,
) -> Sequence[torch.Tensor]:
    """How far the roundings of eager's own types move its results, over a few draws of them."""
    squares = [torch.zeros_like(exact, dtype=torch.float64) for exact in reference]
    for seed in range(_DRAWS):
        set_random_states(states)
        drawn = _reference(region, inputs, eager, RandomRounding(seed))
        for total, moved, exact in zip(squares, drawn, reference, strict=True):
            if exact.is_floating_point():
                total += (moved - exact).double().nan_to_num(0.0, 0.0, 0.0).square()
    return [total.div(_DRAWS).sqrt() * NEAREST for total in squares]


def _reference(
    region: Region,
    inputs: Sequence[Any],
    eager: tuple[torch.Tensor, ...],
    rounding: RandomRounding | None = None,
) -> tuple[torch.Tensor, ...]:
    """Outputs in float64, then the inputs that were written; what eager has of them where there is no such kernel."""
    interpreter = _Float64Interpreter(region, rounding)
    try:
        result = interpreter.run(*inputs)
    except (RuntimeError, NotImplementedError, TypeError):
        return eager
    return (*result, *(interpreter.written[place] for place in region.written))


def _gpus(inputs: Sequence[Any]) -> list[int]:
    """Numbers of the GPUs that a call works on: only their random states are put aside."""
    indices = {value.device.index for value in inputs if isinstance(value, torch.Tensor) and value.is_cuda}
    return sorted(index for index in indices if index is not None)


def _meaningless_outputs(region: Region) -> frozenset[int]:
    """Places of outputs that attention on a GPU fills only for dropout: without it they hold whatever was there."""
    (output,) = region.graph_module.graph.find_nodes(op="output")
    return frozenset(place for place, node in enumerate(output.args[0]) if _is_random_state(node))


def _is_random_state(node: torch.fx.Node) -> bool:
    if node.target is not operator.getitem or int(node.args[1]) < _STATES_OF_ATTENTION:  # type: ignore[arg-type]
        return False
    return op_class_of(str(node.all_input_nodes[0].target)) == "attention"


def _too_large(inputs: Sequence[Any], outputs: Sequence[torch.Tensor]) -> bool:
    tensors = [value for value in (*inputs, *outputs) if isinstance(value, torch.Tensor)]
    gpus = _gpus(tensors)
    cap = min(map(_free_bytes, gpus)) * _SHARE_OF_FREE if gpus else BYTE_CAP
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) > cap


def _free_bytes(gpu: int) -> int:
    """Of a GPU: what nobody has, and what torch keeps for later."""
    kept = torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)
    return torch.cuda.mem_get_info(gpu)[0] + kept


def _coarsest_unit(region: Region) -> float:
    """The largest epsilon of the types that a region computes in."""
    metas = [meta for view in region.views for meta in (*view.input_tensors, *view.output_tensors)]
    return max((torch.finfo(meta.dtype).eps for meta in metas if meta.dtype in _NARROW), default=0.0)


def _roughened(budget: ErrorBudget, result: torch.Tensor, unit: float) -> ErrorBudget:
    """A budget for results that are held against eager's alone, whose own error is about this many units."""
    if not unit or not result.is_floating_point():
        return budget
    return replace(budget, floor=max(budget.floor, _ROUGH_UNITS * unit / torch.finfo(result.dtype).eps))


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _NARROW:
        return value.to(torch.float64)
    return torch.float64 if value in _NARROW and isinstance(value, torch.dtype) else value


class _Float64Interpreter(torch.fx.Interpreter):
    """Runs a graph with every narrow floating dtype argument and result widened.

    Inputs are widened where they are first read, and dropped after their last use; those that the region writes into
    are copies, which stay.
    """

    def __init__(self, region: Region, rounding: RandomRounding | None = None) -> None:
        super().__init__(region.graph_module)
        self._rounding = rounding
        self.written: dict[int, torch.Tensor] = {}
        self._places = {str(node.target): place for place, node in enumerate(self.graph.find_nodes(op="placeholder"))}
        self._copied = frozenset(region.written)

    def placeholder(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An input, widened."""
        value = super().placeholder(target, args, kwargs)
        wide, place = _widen(value), self._places[str(target)]
        if place in self._copied:
            self.written[place] = wide = wide.clone() if wide is value else wide
        return wide

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one op, some in the dtypes of the graph."""
        if not _means_its_dtype(n):
            return self._rounded(super().run_node(n), n)
        sources = {source: _as_traced(self.env[source], source) for source in n.all_input_nodes}
        arguments, keywords = torch.fx.node.map_arg((n.args, n.kwargs), sources.__getitem__)  # type: ignore[misc]
        return torch.fx.node.map_aggregate(n.target(*arguments, **keywords), _widen)  # type: ignore[operator]

    def _rounded(self, value: Any, node: torch.fx.Node) -> Any:
        """What an op computed, rounded to the type that eager has there; written inputs stay the tensors they are."""
        if self._rounding is None or node.op != "call_function" or not isinstance(value, torch.Tensor):
            return value
        traced = node.meta.get("val")
        if not isinstance(traced, torch.Tensor) or traced.dtype not in _NARROW or value.dtype is not torch.float64:
            return value
        if any(value is written for written in self.written.values()):
            return value
        return self._rounding(value, traced.dtype)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wide_args = torch.fx.node.map_aggregate(args, _widen)
        wide_kwargs = torch.fx.node.map_aggregate(kwargs, _widen)
        result = super().call_function(target, wide_args, wide_kwargs)  # type: ignore[arg-type]
        return torch.fx.node.map_aggregate(result, _widen)


def _means_its_dtype(node: torch.fx.Node) -> bool:
    """Whether an op does something else with wider numbers: kernels of attention on a GPU misread them without a word,
    which random number an element gets depends on its dtype, and bits that are read as another type are other bits."""
    if node.op != "call_function":
        return False
    op_class = op_class_of(str(node.target))
    on_gpu = op_class == "attention" and _is_on_gpu(node)
    return on_gpu or op_class == "random" or node.target is torch.ops.aten.view.dtype


def _is_on_gpu(node: torch.fx.Node) -> bool:
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in values)


def _as_traced(value: Any, node: torch.fx.Node) -> Any:
    traced = node.meta.get("val")
    return value.to(traced.dtype) if isinstance(value, torch.Tensor) and isinstance(traced, torch.Tensor) else value
