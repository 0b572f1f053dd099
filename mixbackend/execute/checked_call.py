"""A checked call: one call of a region, with its results held against eager's, and its inputs watched.

Place: between ``execute.region_executor``, which decides when and what follows, and ``execute.verify``, which compares.
Input: a region, its code, the arguments of one call. Output: an ``Outcome``; the inputs hold what they held before
unless the call was right.
Invariants: nothing of the check is raised; what the code itself raises is in the outcome. Eager and the reference work
on what the inputs held before the call, whatever the code wrote.
Non-goals: when a call is checked, see ``region_code``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.contracts import CompiledRegion, ErrorBudget, InputRole, Region
from mixbackend.contracts.numerics import Accuracy, Deviation, find_deviation
from mixbackend.execute.kept_inputs import KeptInputs
from mixbackend.execute.region_code import Depth
from mixbackend.execute.run_function import Run
from mixbackend.execute.strides import is_relied_upon, layout_of
from mixbackend.execute.verify import (
    Check,
    OutOfRangeError,
    RandomStates,
    before_writing,
    check_region,
    checked_eager_result,
    random_states,
    set_random_states,
)

_ROWS = 8
"""Of one output, spread over it."""
_LOOKED_AT = 1 << 16
"""Elements of a large output that tell whether it is constant."""
_ROW_UNITS = 64.0
"""In units of the type's epsilon: rows that are this near to eager's are right; others are held against float64."""


@dataclass(frozen=True)
class Outcome:
    """How a checked call went.

    Attributes:
        outputs: what the code returned, ``None`` if it raised or was not called.
        error: what it raised.
        wrong: what is wrong with the results or with what it wrote, in words.
        lost: places of inputs that it wrote though it must not, and that lost their values.
        unchecked: why there is no answer, in words.
        proves: whether a right result says anything, see ``_proves``.
        accuracy: of a right result that was held against float64.
    """

    outputs: Sequence[Any] | None = None
    error: Exception | None = None
    wrong: str = ""
    lost: tuple[int, ...] = ()
    unchecked: str = ""
    proves: bool = False
    accuracy: Accuracy | None = None

    @property
    def failed(self) -> bool:
        """Whether the code raised, was wrong, or wrote what it must not."""
        return self.error is not None or bool(self.wrong or self.lost)


@dataclass(frozen=True)
class CheckedRegion:
    """A region with a call that is checked: what was made of it, how far it may be off, what its inputs are called,
    and which of them are not watched."""

    region: Region
    compiled: CompiledRegion
    budget: ErrorBudget
    names: tuple[str, ...]
    moving: frozenset[int] = frozenset()


def checked_call(checked: CheckedRegion, run: Run, inputs: list[Any], depth: Depth) -> Outcome:
    """Call the code and look at everything; see ``Outcome``."""
    try:
        kept, states = KeptInputs(checked.region, inputs, checked.moving), random_states(checked.region)
    except Exception as error:
        return Outcome(unchecked=_error_text("what the inputs hold cannot be kept", error))
    try:
        outputs = tuple(run(inputs))
    except Exception as error:
        return _raised(kept, states, error)
    try:
        return _looked_at(checked, kept, states, inputs, outputs, depth)
    except Exception as error:
        return Outcome(outputs, unchecked=_error_text("the check failed", error))


def _raised(kept: KeptInputs, states: RandomStates, error: Exception) -> Outcome:
    """The code raised: everything is as before, so that eager can be asked."""
    try:
        kept.restore_declared()
        set_random_states(states)
        return Outcome(error=error, lost=kept.undeclared().lost)
    except Exception as second:
        return Outcome(error=error, unchecked=_error_text("what the inputs held cannot be put back", second))


def _looked_at(
    checked: CheckedRegion,
    kept: KeptInputs,
    states: RandomStates,
    inputs: list[Any],
    outputs: tuple[Any, ...],
    depth: Depth,
) -> Outcome:
    written = kept.undeclared()
    wrong = _written_in_words([checked.names[place] for place in (*written.restored, *written.lost)])
    if not wrong:
        deviation = malformed(checked, inputs, outputs)
        try:
            check = Check(deviation) if deviation else _compared(checked, kept, states, inputs, outputs, depth)
            wrong = "" if check.deviation is None else str(check.deviation)
        except OutOfRangeError as error:
            # The answer is eager's, and so is its error.
            check, wrong = Check(), str(error)
        if check.unknown:
            return Outcome(outputs, unchecked=check.unknown)
    if wrong:
        kept.restore_declared()
        set_random_states(states)
        return Outcome(outputs, wrong=wrong, lost=written.lost)
    return Outcome(outputs, proves=_proves(checked.region, kept.before, outputs), accuracy=check.accuracy)


def _compared(
    checked: CheckedRegion,
    kept: KeptInputs,
    states: RandomStates,
    inputs: list[Any],
    outputs: tuple[Any, ...],
    depth: Depth,
) -> Check:
    region = checked.region
    if depth == "rows" and _rows_are_right(region, kept.before, outputs, states):
        return Check()
    written = [inputs[place] for place in region.written]
    return check_region(region, kept.before, outputs, checked.budget, written, states)


def _rows_are_right(region: Region, inputs: Sequence[Any], outputs: Sequence[Any], states: RandomStates) -> bool:
    """Whether some rows of the largest output are what eager has there; in doubt they are not."""
    gpus = {value.device.index for value in inputs if isinstance(value, torch.Tensor) and value.is_cuda}
    gpus |= {gpu for gpu, _ in states if gpu is not None}
    with torch.no_grad(), torch.random.fork_rng(sorted(gpus)):
        set_random_states(states)
        eager = checked_eager_result(region, before_writing(region, inputs))
        index = max(range(len(eager)), key=lambda place: eager[place].numel(), default=None)
        if index is None or len(outputs) != len(eager):
            return False
        mine, theirs = _some_rows(outputs[index]), _some_rows(eager[index])
        return find_deviation(index, mine, theirs, theirs, ErrorBudget(1.0, _ROW_UNITS)) is None


def _some_rows(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 0 or len(tensor) <= _ROWS:
        return tensor
    places = [place * (len(tensor) - 1) // (_ROWS - 1) for place in range(_ROWS)]
    return tensor[torch.tensor(places, device=tensor.device)]


def malformed(checked: CheckedRegion, inputs: Sequence[Any], outputs: Sequence[Any]) -> Deviation | None:
    """Form of the outputs: number, type, strides that were promised, and storage that belongs to nothing else."""
    region = checked.region
    if len(outputs) != len(region.outputs):
        return Deviation(len(outputs), float("inf"), 0.0, 0.0, "shape")
    owners: dict[int, set[int]] = {}
    for place, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.data_ptr():
            owners.setdefault(value.data_ptr(), set()).add(place)
    for index, (output, expected) in enumerate(zip(outputs, region.outputs, strict=True)):
        if not isinstance(output, torch.Tensor):
            return Deviation(index, float("inf"), 0.0, 0.0, "dtype")
        shared = owners.get(output.data_ptr()) if output.numel() else None
        if shared is not None and expected.alias_of not in shared:
            return Deviation(index, float("inf"), 0.0, 0.0, "storage")
        promised = expected.exact_stride and is_relied_upon(checked.compiled, expected.meta)
        as_expected = tuple(output.shape) == tuple(expected.meta.shape)
        layout = layout_of(region, expected.meta) if promised and as_expected else None
        if layout is not None and layout(inputs)(output) is not output:
            return Deviation(index, float("inf"), 0.0, 0.0, "stride")
    return None


def _proves(region: Region, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Whether a right result says that the code is right: not if all inputs but weights are zero, or if all outputs of
    more than one element are constant, which much wrong code would return, too."""
    given = [
        value
        for item, value in zip(region.inputs, inputs, strict=True)
        if isinstance(value, torch.Tensor) and value.numel() and item.role is not InputRole.CONSTANT
    ]
    activations = [
        value
        for item, value in zip(region.inputs, inputs, strict=True)
        if isinstance(value, torch.Tensor) and value.numel() and not item.role.is_weight
    ]
    if not given:
        # There is but one result.
        return True
    if activations and not any(bool(value.any()) for value in activations):
        return False
    several = [value for value in outputs if value.numel() > 1]
    return not several or not all(map(_is_constant, several))


def _is_constant(tensor: torch.Tensor) -> bool:
    """As far as it is looked at: of large ones at elements spread over it."""
    flat = tensor.detach().reshape(-1) if tensor.numel() <= _LOOKED_AT else _spread(tensor)
    # What is no number at all is as little to go by.
    return bool(((flat == flat[0]) | (flat != flat)).all())


def _spread(tensor: torch.Tensor) -> torch.Tensor:
    """Elements at random places, which are the same in every call."""
    places = torch.Generator().manual_seed(0)
    indices = [torch.randint(size, (_LOOKED_AT,), generator=places) for size in tensor.shape]
    return tensor[tuple(index.to(tensor.device) for index in indices)]


def _written_in_words(names: Sequence[str]) -> str:
    return f"it wrote into {', '.join(names)}, which it had not declared" if names else ""


def _error_text(what: str, error: Exception) -> str:
    return f"{what}: {type(error).__name__}: {error}"
