"""Verification: which calls of a region's code are held against the reference, and what is known of the code by them.

Place: around the code of a region, below ``execute.region_executor``, which answers where it was wrong. Input: one
binding of the code, its calls. Output: a run function; ``Unverified`` where a check could not be made or proved little.
Invariants: a call that is not known to be right is checked, or was found not to be checkable; what was found belongs to
the binding that was called, whatever is bound meanwhile.
Non-goals: how a call is checked, see ``checked_call``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mixbackend.contracts import ErrorBudget, Region
from mixbackend.execute.answers import ExecutionPolicy
from mixbackend.execute.checked_call import CheckedRegion, Outcome, checked_call
from mixbackend.execute.faults import Faults, Unverified
from mixbackend.execute.region_code import MOST_UNPROVED, Checks, Depth, RegionCode
from mixbackend.execute.region_sizes import Sizes, size_classes
from mixbackend.execute.run_function import Run
from mixbackend.execute.verify import TF32_FLOOR, may_round_to_tf32

SAMPLE_EVERY = 256
"""With ``verify: sampled``, one call in this many is held against the reference."""


def verified(
    run: Run, verification: Verification, plain: Run, refuted: Callable[[list[Any], Outcome], Sequence[Any]]
) -> Run:
    """Code with calls that are held against the reference, as far as they are to be.

    Args:
        run: the code.
        verification: of this binding of it.
        plain: what calls go to that are not checked.
        refuted: answers a call that failed, or was wrong.
    """
    sizes_of = size_classes(verification.region)

    def verifying(inputs: list[Any]) -> Sequence[Any]:
        sizes = sizes_of(inputs)
        depth = verification.depth(sizes)
        if depth == "none":
            return plain(inputs)
        outcome = verification.check(run, inputs, depth, sizes)
        if outcome.failed:
            return refuted(inputs, outcome)
        return plain(inputs) if outcome.outputs is None else outcome.outputs

    return verifying


@dataclass
class Verification:
    """Of one binding of a region's code; see the module's docstring.

    Attributes:
        region: what was compiled.
        code: what was made of it.
        policy: see ``ExecutionPolicy``.
        names: what the user calls the inputs.
        moving: places of inputs that the graph writes in some region: other threads may, at any time.
        faults: where it says what was not checked.
        checks: what was checked of the binding.
        rechecked_s: seconds of checked calls of all bindings but the first.
        unproved: classes of sizes: their calls proved nothing yet, and are to be checked again.
    """

    region: Region
    code: RegionCode
    policy: ExecutionPolicy
    names: tuple[str, ...]
    moving: frozenset[int]
    faults: Faults
    checks: Checks
    rechecked_s: float = 0.0
    unproved: set[Sizes] = field(default_factory=set)
    _calls: int = 0

    def depth(self, sizes: Sizes) -> Depth:
        """How the next call at sizes of a class is to be checked."""
        if self.policy.verify == "always":
            return "whole"
        if self.policy.verify == "sampled":
            self._calls += 1
            if self._calls % SAMPLE_EVERY == 0:
                return "whole"
        depth = self.code.depth(self.checks, sizes)
        if depth == "none":
            self.checks.passed.add(sizes)
            self.unproved.discard(sizes)
        return depth

    def check(self, run: Run, inputs: list[Any], depth: Depth, sizes: Sizes) -> Outcome:
        """Call the code and hold the call against the reference."""
        start = time.monotonic()
        checked = CheckedRegion(self.region, self.code.compiled, self._budget(), self.names, self.moving)
        outcome = checked_call(checked, run, inputs, depth)
        self.rechecked_s += time.monotonic() - start if self.checks.later else 0.0
        if outcome.failed:
            return outcome
        if outcome.unchecked or not outcome.proves:
            self._proved_nothing(sizes, outcome)
        else:
            self.code.found_right(self.checks, sizes, depth, outcome.accuracy)
            self.unproved.discard(sizes)
        return outcome

    def _proved_nothing(self, sizes: Sizes, outcome: Outcome) -> None:
        last = self.code.found_unproved(self.checks, sizes)
        (self.unproved.discard if last else self.unproved.add)(sizes)
        if outcome.unchecked:
            self._say(f"a call was not checked: {outcome.unchecked}")
        elif last:
            reason = "all inputs were zero, or all outputs constant"
            self._say(f"taken as right unproved: in {MOST_UNPROVED} checked calls {reason}; this is not remembered")

    def _say(self, text: str) -> None:
        self.faults.append(Unverified(self.region, self.code.backend, text))

    def _budget(self) -> ErrorBudget:
        """Torch's flags may have changed since the call before."""
        own = self.code.backend.traits().error_budget
        floor = max(own.floor, TF32_FLOOR) if may_round_to_tf32(self.region) else own.floor
        return ErrorBudget(max(own.factor, self.policy.factor), floor)
