"""Verify: hold what a region returned, and what it wrote into its inputs, against eager and a float64 reference.

Place: around a region's first call (or sampled, or every call), between the backend's code and the rest of the graph.
Input: a region, the inputs of one call as they were before it, the outputs its owner gave and the inputs it wrote; for
regions that draw random numbers, the state of torch's generators before the call.
Output: a ``Check``: right, the first deviation (inputs that were written count after the outputs), or why it cannot
be told.
Invariants: nothing but ``OutOfRangeError`` is raised into the caller, whatever goes wrong; torch's random state is what
it was; inputs are not changed; nothing is kept.
Non-goals: deciding what happens to a wrong region, see ``execute.region_executor``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import ErrorBudget, OpTag, Region, op_class_of
from mixbackend.contracts.numerics import Accuracy, Comparison, Deviation, compare
from mixbackend.contracts.torch_compat import rounds_convolutions, rounds_products, warned_at_most
from mixbackend.execute.check_memory import CallMemory
from mixbackend.execute.chosen_positions import Choice
from mixbackend.execute.eager_loops import Loop, LoopInterpreter, loops_of
from mixbackend.execute.outputs_shown import OutputsShown
from mixbackend.execute.reference import DRAWS, NARROW, RoundingNoise, WideInterpreter, wide_results

BYTE_CAP = 2 * 1024**3
"""So many bytes a check may take beside the call; on a GPU, a share of its free memory."""
_SHARE_OF_FREE = 1 / 4
_KEPT_BYTES = 256 << 20
"""Of a GPU's memory: what torch may keep of what verifying a region took."""
_ROUGH_UNITS = 4.0
"""Where eager's own error is not known: so many units of the coarsest type that a region computes in."""

TF32_FLOOR = 2.0**14
"""In units of float32's epsilon: what rounding the factors to TF32 may do to a result, where torch's flags allow it and
eager happens to take a kernel that does not."""

_MEASURED = ("rms", "max")
_EXPLAINED = 32.0
"""Times the noise of rounding that eager may be off before something else than rounding must have made it so."""

_STATES_OF_ATTENTION = 2
"""Results of attention from this place on are no values: what the backward needs of shapes and random numbers."""


def may_round_to_tf32(region: Region) -> bool:
    """Whether torch's flags let kernels of the region round float32 factors to TF32."""
    products = rounds_products()
    allowed = {"matmul": products, "attention": products, "convolution": rounds_convolutions()}
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


RandomStates = Sequence[tuple[int | None, torch.Tensor]]
"""Of generators: that of the processor, and those of GPUs by number."""


def random_states(region: Region) -> RandomStates:
    """States of the generators that a region draws from; nothing where it draws nothing."""
    views = [view for view in region.views if OpTag.RANDOM in view.node.tags]
    devices = {meta.device for view in views for meta in view.output_tensors}
    gpus = {
        torch.cuda.current_device() if item.index is None else item.index for item in devices if item.type == "cuda"
    }
    numbers: list[int | None] = [None] if any(item.type == "cpu" for item in devices) else []
    return _states_of((*numbers, *sorted(gpus)))


def _states_of(generators: Sequence[int | None]) -> RandomStates:
    return [(gpu, torch.get_rng_state() if gpu is None else torch.cuda.get_rng_state(gpu)) for gpu in generators]


def set_random_states(states: RandomStates) -> None:
    """Let the generators draw once more what they drew from there on."""
    for gpu, state in states:
        if gpu is None:
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, gpu)


def eager_result(region: Region, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """What eager returns for a region."""
    return tuple(region.graph_module.forward(*inputs))


class OutOfRangeError(Exception):
    """Eager raises an ``IndexError`` for the inputs of a call that returned results."""


def checked_eager_result(region: Region, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """What eager returns, in a check.

    Raises:
        OutOfRangeError: an index is out of range, which the code that is checked did not tell.
    """
    try:
        return eager_result(region, inputs)
    except IndexError as error:
        raise OutOfRangeError(f"eager raises IndexError: {error}") from error


@dataclass(frozen=True, slots=True)
class Check:
    """What holding one call of a region against eager has shown: right where both fields are empty.

    Attributes:
        deviation: the first one beyond the budget.
        unknown: why it cannot be told whether the call was right, in words.
        accuracy: of the result that is farthest off beside eager; ``None`` where nothing was held against float64.
    """

    deviation: Deviation | None = None
    unknown: str = ""
    accuracy: Accuracy | None = None

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
    """Hold a call against eager and float64.

    Raises:
        OutOfRangeError: see ``checked_eager_result``; nothing else, whatever goes wrong.

    Args:
        inputs: as they were before the call.
        outputs: what the call returned.
        written: the inputs at ``region.written``, as they are after it.
        states: of the generators before the call.
    """
    try:
        if len(outputs) != len(region.outputs):
            places = min(len(outputs), len(region.outputs))
            return Check(Deviation(places, float("inf"), 0.0, 0.0, "shape"))
        return _watched(_Call(region, inputs, (*outputs, *written), budget, states))
    except OutOfRangeError:
        raise
    except Exception as error:
        # Whatever it is, it is the check's: the user's call has its result already.
        return Check(unknown=f"the check failed: {type(error).__name__}: {error}")


def reference_result(
    region: Region, inputs: Sequence[Any], eager: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """A region's result computed in float64; eager's own where an operator has no float64 kernel."""
    return (wide_results(region, inputs) or eager)[: len(region.outputs)]


@dataclass(frozen=True)
class _Call:
    """What is checked: see ``check_region``; ``results`` are the outputs, then the inputs that were written."""

    region: Region
    inputs: Sequence[Any]
    results: Sequence[torch.Tensor]
    budget: ErrorBudget
    states: RandomStates

    @property
    def gpus(self) -> list[int]:
        """Numbers of the GPUs that it works on."""
        drawing = {gpu for gpu, _ in self.states if gpu is not None}
        return sorted({*_gpus(self.inputs), *_gpus(self.results), *drawing})


def _watched(call: _Call) -> Check:
    """The check; torch's generators are left as they are, and of a GPU's memory what only this took is given back."""
    gpus = call.gpus
    before = sum(map(torch.cuda.memory_reserved, gpus))
    with warned_at_most(), torch.no_grad(), torch.random.fork_rng(gpus):
        check = _checked(call)
    if sum(map(torch.cuda.memory_reserved, gpus)) - before > _KEPT_BYTES:
        # Float64 values are needed once: what torch keeps for later is missed by all others.
        torch.cuda.empty_cache()
    return check


def _checked(call: _Call) -> Check:
    """The check as it fits into memory: against float64, whole or part by part, or against eager's own results."""
    memory, most = CallMemory(call.region, call.inputs), _most_bytes(call)
    if memory.wide <= most:
        return _against_float64(call)
    parts = memory.parts(call.results, most)
    if parts is not None:
        return _of_parts(_against_float64(replace(call, inputs=inputs, results=results)) for inputs, results in parts)
    if memory.native <= most:
        return _against_eager(call)
    needed = min(memory.wide, memory.native) / 1e9
    return Check(
        unknown=f"it would take {needed:.1f} GB of memory beside the call, and {most / 1e9:.1f} GB are allowed"
    )


def _of_parts(checks: Iterable[Check]) -> Check:
    """The first that is not right; otherwise the least accurate."""
    accuracy: Accuracy | None = None
    for check in checks:
        if not check.right:
            return check
        accuracy = check.accuracy.worse(accuracy) if check.accuracy is not None else accuracy
    return Check(accuracy=accuracy)


def _against_float64(call: _Call) -> Check:
    generators = [gpu for gpu, _ in call.states]
    after = _states_of(generators)
    own = before_writing(call.region, call.inputs)
    set_random_states(call.states)
    eager = (*checked_eager_result(call.region, own), *(own[place] for place in call.region.written))
    drawn = _states_of(generators)
    set_random_states(call.states)
    exact = wide_results(call.region, call.inputs)
    check = _first_deviation(call, eager) if exact is None else _Judged(call, eager, exact).check()
    if check.deviation is not None and _is_right_in_another_loop(call):
        check = Check()
    if check.right and any(not torch.equal(mine, theirs) for (_, mine), (_, theirs) in zip(after, drawn, strict=True)):
        return Check(Deviation(len(call.results), float("inf"), 0.0, 0.0, "random"))
    return check


def _is_right_in_another_loop(call: _Call) -> bool:
    """Whether eager itself would have returned this for values at other places in memory; see ``eager_loops``."""
    loops = () if call.states or call.region.written else loops_of(call.region)
    for loop in loops:
        eager = LoopInterpreter(call.region.graph_module, loop).run(*call.inputs)
        exact = wide_results(call.region, call.inputs, loop=loop)
        if exact is not None and _Judged(call, eager, exact, loop).check().right:
            return True
    return False


class _Judged:
    """The results of a call beside eager's and the reference's; noise of rounding is drawn where it is asked for."""

    def __init__(
        self,
        call: _Call,
        eager: Sequence[torch.Tensor],
        exact: Sequence[torch.Tensor],
        loop: Loop | None = None,
    ) -> None:
        self._call, self._eager, self._exact, self._loop = call, eager, exact, loop
        self._noise = RoundingNoise(call.region, call.inputs, exact, partial(set_random_states, call.states), loop)

    def check(self) -> Check:
        """The first deviation; otherwise the first result of which nothing can be told."""
        unknown, accuracy = "", None
        for index in _meaningful(self._call):
            found = self._compared(index)
            if found.deviation is not None:
                return Check(found.deviation)
            if found.proves_little(self._call.budget):
                unknown = unknown or self._unexplained(index, found)
            accuracy = Accuracy(found.error, found.eager_error).worse(accuracy)
        return Check(unknown=unknown, accuracy=accuracy)

    def _compared(self, index: int) -> Comparison:
        """A result that seems wrong is so only if it is farther off than rounding takes it."""
        values = (self._call.results[index], self._eager[index], self._exact[index])
        found = compare(index, *values, self._call.budget)
        if found.deviation is None or found.deviation.measure not in _MEASURED:
            return Comparison(None) if _is_integer(found.deviation) and self._is_as_good(index) else found
        return compare(index, *values, self._call.budget, self._noise.of(index))

    def _is_as_good(self, index: int) -> bool:
        """Whether a result names positions of values that are as extreme as eager's, as far as rounding tells."""
        call, choice = self._call, Choice.of(self._call.region, index)
        if choice is None:
            return False
        set_random_states(call.states)
        exact = choice.values(WideInterpreter(call.region, loop=self._loop), call.inputs)
        errors = (_eager_values(call, choice, self._loop).to(exact.dtype) - exact).abs()
        return choice.allows(call.results[index], (self._exact[index], self._eager[index]), exact, errors)

    def _unexplained(self, index: int, found: Comparison) -> str:
        """Why nothing can be told of a result: eager is off, and it is not rounding. One draw tells mostly, since the
        result is looked at as a whole; it takes as long as the reference several times over."""
        for draws in (1, DRAWS):
            noise = self._noise.of(index, draws)
            explained = float(torch.linalg.vector_norm(noise)) / max(1, noise.numel()) ** 0.5
            if found.eager_error <= _EXPLAINED * explained:
                return ""
        return (
            f"eager's output {index} is off by {found.eager_error:.3g} from float64, where its values are "
            f"{found.size:.3g} and rounding explains {explained:.3g}"
        )


def _first_deviation(call: _Call, eager: Sequence[torch.Tensor]) -> Check:
    """Against eager's results alone; their own error is not known."""
    found = (_beside_eager(call, index, eager[index]) for index in _meaningful(call))
    return Check(next((deviation for deviation in found if deviation is not None), None))


def _beside_eager(call: _Call, index: int, eager: torch.Tensor) -> Deviation | None:
    unit = _coarsest_unit(call.region)
    found = compare(index, call.results[index], eager, eager, _roughened(call.budget, eager, unit)).deviation
    choice = Choice.of(call.region, index) if _is_integer(found) else None
    if choice is None:
        return found
    values = _eager_values(call, choice)
    errors = values.abs() * (_ROUGH_UNITS * unit if values.is_floating_point() else 0.0)
    return None if choice.allows(call.results[index], (eager,), values, errors) else found


def _is_integer(deviation: Deviation | None) -> bool:
    return deviation is not None and deviation.measure == "integer"


def _eager_values(call: _Call, choice: Choice, loop: Loop | None = None) -> torch.Tensor:
    """What an output chose from, in eager."""
    set_random_states(call.states)
    interpreter = LoopInterpreter(call.region.graph_module, loop)
    return choice.values(interpreter, before_writing(call.region, call.inputs))


def _against_eager(call: _Call) -> Check:
    """Against eager's own results, each as soon as it is there, so that none has to be kept."""
    set_random_states(call.states)
    if call.region.written:
        own = before_writing(call.region, call.inputs)
        eager = (*checked_eager_result(call.region, own), *(own[place] for place in call.region.written))
        return _first_deviation(call, eager)
    found: list[Deviation] = []
    meaningful = frozenset(_meaningful(call))

    def look(index: int, eager: torch.Tensor) -> None:
        deviation = _beside_eager(call, index, eager) if index in meaningful else None
        if deviation is not None:
            found.append(deviation)

    OutputsShown(call.region, look).run(*call.inputs)
    return Check(min(found, key=lambda deviation: deviation.output, default=None))


def _meaningful(call: _Call) -> list[int]:
    """Places of the results that are compared."""
    meaningless = _meaningless_outputs(call.region)
    return [index for index in range(len(call.results)) if index not in meaningless]


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


def _most_bytes(call: _Call) -> int:
    """What the check may take beside the call."""
    gpus = _gpus((*call.inputs, *call.results))
    return int(min(map(_free_bytes, gpus)) * _SHARE_OF_FREE) if gpus else BYTE_CAP


def _free_bytes(gpu: int) -> int:
    """Of a GPU: what is free, and what torch keeps for later."""
    kept = torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)
    return torch.cuda.mem_get_info(gpu)[0] + kept


def _coarsest_unit(region: Region) -> float:
    """The largest epsilon of the types that a region computes in."""
    metas = [meta for view in region.views for meta in (*view.input_tensors, *view.output_tensors)]
    return max((torch.finfo(meta.dtype).eps for meta in metas if meta.dtype in NARROW), default=0.0)


def _roughened(budget: ErrorBudget, result: torch.Tensor, unit: float) -> ErrorBudget:
    """A budget for results that are held against eager's alone: the error of those is about this many units."""
    if not unit or not result.is_floating_point():
        return budget
    return replace(budget, floor=max(budget.floor, _ROUGH_UNITS * unit / torch.finfo(result.dtype).eps))
