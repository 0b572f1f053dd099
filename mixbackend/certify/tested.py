"""One case with the code that a backend made of it, and how a call of that code is judged.

Place: between cases and properties. Input: a case, a compiled region. Output: ``Problem``, or ``None`` where a call is
right.
Rule: the one by which regions are checked at run time (``execute.verify``): no farther from float64 than the backend's
error budget allows beside eager, form as the region says, inputs as they were, random generators where eager leaves
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.certify.cases import Case
from mixbackend.certify.variants import copies
from mixbackend.contracts import CompiledRegion, ErrorBudget, OpTag, Region
from mixbackend.contracts.asked import AskedBackend
from mixbackend.execute.checked_call import CheckedRegion, malformed
from mixbackend.execute.kept_inputs import KeptInputs
from mixbackend.execute.verify import (
    OutOfRangeError,
    before_writing,
    check_region,
    eager_result,
    random_states,
    reference_result,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a claim.

    Attributes:
        kind: name of what does not hold: ``values``, ``input writes``, ``aliasing``...
        text: what was seen.
    """

    kind: str
    text: str


class NotAsked(Exception):  # noqa: N818 - it is no error: there is nothing to ask
    """Why a property has nothing to say about a case."""


@dataclass(frozen=True)
class Tested:
    """A case and its code.

    Attributes:
        case: what was compiled.
        backend: that compiled it.
        compiled: into what.
    """

    case: Case
    backend: AskedBackend
    compiled: CompiledRegion

    @property
    def region(self) -> Region:
        """The region of the case."""
        return self.case.region

    @property
    def budget(self) -> ErrorBudget:
        """How far results may be off."""
        return self.backend.traits().error_budget

    @property
    def random(self) -> bool:
        """Whether the region draws random numbers."""
        return any(OpTag.RANDOM in view.node.tags for view in self.region.views)

    def inputs(self) -> list[Any]:
        """Of one call, as the sample has them."""
        return copies(self.case.inputs)

    def call(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """One call, not judged."""
        with torch.no_grad():
            return list(self.compiled.run(list(inputs)))

    def judged(self, inputs: Sequence[Any], run: Any = None) -> Problem | None:
        """One call, judged; inputs that the region writes are written."""
        return self.judged_results(inputs, run)[0]

    def judged_results(self, inputs: Sequence[Any], run: Any = None) -> tuple[Problem | None, list[torch.Tensor]]:
        """The same with the results.

        Raises:
            NotAsked: it cannot be told whether the call was right.
        """
        region = self.region
        kept, states = KeptInputs(region, inputs), random_states(region)
        stream = torch.get_rng_state()
        try:
            with torch.no_grad():
                outputs = list((run or self.compiled.run)(list(inputs)))
        except Exception as error:
            return Problem("raises", one_line(error)), []
        written = kept.undeclared()
        places = (*written.restored, *written.lost)
        if places:
            names = ", ".join(region.inputs[place].name for place in places)
            return Problem("input writes", f"it wrote into {names}, which it had not declared"), outputs
        if not states and not torch.equal(stream, torch.get_rng_state()):
            torch.set_rng_state(stream)
            return Problem("random stream", "it drew from torch's generator, and eager does not"), outputs
        checked = CheckedRegion(region, self.compiled, self.budget, tuple(item.name for item in region.inputs))
        deviation = malformed(checked, inputs, outputs)
        if deviation is not None:
            return Problem(
                _FORMS.get(deviation.measure, "form"), _form_text(deviation.measure, deviation.output)
            ), outputs
        writes = [inputs[place] for place in region.written]
        try:
            check = check_region(region, kept.before, outputs, self.budget, writes, states)
        except OutOfRangeError as error:
            return Problem("values", f"it returns results where {error}"), outputs
        if check.deviation is not None:
            kind = "random stream" if self.random or check.deviation.measure == "random" else "values"
            return Problem(kind, str(check.deviation)), outputs
        if check.unknown:
            raise NotAsked(check.unknown)
        return None, outputs


_FORMS = {"storage": "aliasing"}
_FORM_TEXTS = {
    "storage": "lies in the memory of an input, which eager's does not",
    "stride": "has other strides than the compiled region promises",
    "dtype": "is no tensor",
    "shape": "is missing, or one too many",
}


def _form_text(measure: str, output: int) -> str:
    return f"output {output} {_FORM_TEXTS.get(measure, measure)}"


def named(kind: str, problem: Problem | None, when: str) -> Problem | None:
    """A problem under the name of the property that found it, with when it was found."""
    return None if problem is None else Problem(kind, f"{when}: {problem.text}")


def eager_refuses(region: Region, inputs: Sequence[Any]) -> str:
    """Why eager cannot run a call, ``""`` if it can."""
    try:
        with torch.no_grad(), torch.random.fork_rng([]):
            results = eager_result(region, before_writing(region, copies(inputs)))
    except Exception as error:
        return one_line(error)
    return "" if len(results) == len(region.outputs) else "it returns something else"


def error_in_units(tested: Tested, inputs: Sequence[Any], outputs: Sequence[torch.Tensor]) -> float | None:
    """Largest root mean square distance of an output from float64, in units of its type beside the largest magnitude;
    ``None`` where no output is a floating one, or what is drawn decides."""
    region = tested.region
    if tested.random or region.written:
        return None
    with torch.no_grad():
        eager = eager_result(region, copies(inputs))
        exact = reference_result(region, copies(inputs), eager)
    found = [_units(mine, right) for mine, right in zip(outputs, exact, strict=True) if _comparable(mine, right)]
    return max(found, default=None)


def _comparable(mine: torch.Tensor, exact: torch.Tensor) -> bool:
    floating = mine.is_floating_point() and exact.is_floating_point()
    return floating and mine.numel() > 0 and mine.shape == exact.shape and bool(torch.isfinite(exact).all())


def _units(mine: torch.Tensor, exact: torch.Tensor) -> float:
    difference = mine.double() - exact.double()
    rms = float(difference.square().mean().sqrt())
    # What is smaller than the type's least number is no error.
    scale = max(float(exact.abs().max()), torch.finfo(mine.dtype).smallest_normal)
    return rms / (torch.finfo(mine.dtype).eps * scale)


def one_line(error: BaseException) -> str:
    """An exception in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
