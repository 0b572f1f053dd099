"""The executor of a region: one region of one graph while it runs.

Place: between the stitched function and the code a backend compiled, which equal layers share (``region_code``).
Input: the region's arguments at each call. Output: its results, with the strides that consumers rely on.
Method: a call is one call of a run function, which is composed of wrappers whenever the state changes:
``output_forms``, ``answers``, ``verification``, ``region_sizes``, ``strides``, ``timed_calls``, ``uncounted_writes``.
What a state does not need is no part of it. The state follows from what is known of the executor (``_due``), and is
read off once more after each call that may have added to that.
Invariants: the caller always gets a right result unless the policy is to raise: a call that fails or is found wrong is
answered by eager, and the failure is left in ``faults`` once, for the code that holds the graph to place the region
anew. Versions of written inputs stay: torch counts a graph's writes itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

import torch

from mixbackend.backends.common import forks
from mixbackend.contracts import BoundRun, Region
from mixbackend.contracts.region import RunFunction
from mixbackend.execute.answers import Answer, Answers, ExecutionPolicy, answered
from mixbackend.execute.checked_call import Outcome
from mixbackend.execute.faults import Failed, Faults
from mixbackend.execute.output_forms import looked_at
from mixbackend.execute.region_code import Checks, RegionCode
from mixbackend.execute.region_errors import FailureKind
from mixbackend.execute.region_sizes import admitted, by_sizes, in_sizes_of
from mixbackend.execute.run_function import Run
from mixbackend.execute.strides import restrided, restriders
from mixbackend.execute.timed_calls import TimedCalls, timed
from mixbackend.execute.uncounted_writes import uncounted
from mixbackend.execute.verification import Verification, verified
from mixbackend.host.threads import sharing

_changes = forks.reentrant_lock()
"""The lock of all executors: held while a state, or what it follows from, is changed, and for that alone. One lock,
and reentrant: a graph may be released in the middle of anything."""


class State(Enum):
    """Of an executor."""

    CHECKED = "calls are held against the reference, until one of them was right"
    WATCHED = "calls are held against the reference for good, all of them or a sample"
    TIMED = "calls are timed; those at sizes that were not checked are held against the reference"
    SETTLED = "calls run; those at sizes that were not checked are held against the reference"
    UNBOUND = "eager runs it, until there is code for new constants"
    RETIRED = "its code has failed elsewhere: eager answers the next call, which says so"
    LEFT = "its code has failed: eager runs it until the graph is placed anew"


@dataclass(frozen=True)
class _Runs:
    """Run functions of one binding of the code.

    Attributes:
        bare: as it is.
        plain: unverified, unless the sizes of a call are far from those that were checked.
        verified: held against the reference.
    """

    bare: Run
    plain: Run
    verified: Run


class RegionExecutor:
    """Runs one region; see the module's docstring.

    Args:
        region: what was compiled.
        code: what was made of it.
        policy: see ``ExecutionPolicy``.
        faults: where it says what went wrong.
        sources: what the user calls inputs, by their names in the graph.
        moving: names of inputs that the graph writes in some region: other threads may, at any time.
    """

    def __init__(
        self,
        region: Region,
        code: RegionCode,
        policy: ExecutionPolicy,
        faults: Faults,
        sources: Mapping[str, str] = MappingProxyType({}),
        moving: Collection[str] = (),
    ) -> None:
        self.region = region
        self.code = code
        self.backend = code.backend
        self.compiled = code.compiled
        self._policy = policy
        self._faults = faults
        self._traits = code.backend.traits()
        names = tuple(sources.get(item.name, item.name) for item in region.inputs)
        self._answers = Answers(region, code.backend, names, policy.strict)
        self._restriders = restriders(region, code.compiled)
        self._written = region.written
        self._times = TimedCalls(region)
        self._bound: BoundRun | None = None
        self._failure = ""
        self._is_told = False
        places = frozenset(place for place, item in enumerate(region.inputs) if item.name in moving)
        checks = Verification(region, code, policy, names, places, faults, code.unbound)
        self._runs: _Runs | None = self._runs_of(code.compiled.run, checks)
        self._verification = checks
        self._enter()
        code.used_by(self)

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the region on tensors and numbers in the order of ``region.inputs``."""
        return self._run(inputs)

    def unguarded(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the region for a recording: nothing is verified or timed, and what it raises is raised."""
        return self._bare(inputs)

    @property
    def state(self) -> State:
        """What becomes of the next call."""
        return self._state

    @property
    def settled(self) -> bool:
        """Whether calls at sizes that came before are not held against the reference any more: they do nothing but
        run."""
        return self._state not in (State.CHECKED, State.WATCHED) and not self._verification.unproved

    @property
    def measured_s(self) -> float | None:
        """Median seconds of a few calls, the first ones or those after ``time_again``; ``None`` before."""
        return self._times.median_s

    @property
    def rechecked_s(self) -> float:
        """Seconds of checked calls of all bindings but the first."""
        return self._verification.rechecked_s

    def time_again(self) -> None:
        """Time the next calls instead of the first ones; an executor that still verifies times those that come
        after."""
        self._times.begin_again()
        self._enter()

    # --- constants ---------------------------------------------------------------------------------------------------

    @property
    def bound(self) -> BoundRun | None:
        """Code for known constants, if it runs such."""
        return self._bound

    def bind(self, constants: Sequence[torch.Tensor | None]) -> None:
        """Run code for these values from now on, where the backend makes such; it is checked when it runs first.

        Args:
            constants: one entry per region input, ``None`` for those that are no constants.

        Raises:
            Exception: whatever the backend raises.
        """
        if self.compiled.bind is None or all(value is None for value in constants):
            return
        bound, last = self.compiled.bind(constants), self._verification
        checks = Checks(bound=True, later=last.checks is not self.code.unbound)
        verification = Verification(
            self.region, self.code, self._policy, last.names, last.moving, self._faults, checks, last.rechecked_s
        )
        runs = self._runs_of(bound.run, verification)
        with _changes:
            self._bound, self._runs, self._verification = bound, runs, verification
            self._enter()

    def run_eager(self) -> None:
        """Run what eager runs, for any values, until it is bound again: nothing is verified or timed meanwhile."""
        with _changes:
            self._bound = self._runs = None
            self._enter()

    # --- the run function --------------------------------------------------------------------------------------------

    def _runs_of(self, run: RunFunction, verification: Verification) -> _Runs:
        code: Run = self.code.serialised(run, lambda inner: sharing.parked(self._traits.thread_pool, inner))
        if not self._traits.reference and not self._traits.fixed_outputs:
            code = looked_at(self.region, code)
        # What eager raises is what the user's code raises.
        plain = code if self._traits.reference else answered(code, self._failed)
        checked = plain
        if self._verifies:
            checked = verified(code, verification, plain, self._refuted)
            plain = by_sizes(self.region, verification.checks.passed, plain, checked)
        return _Runs(*map(self._admitted, (code, plain, checked)))

    def _admitted(self, run: Run) -> Run:
        conditions = in_sizes_of(self.region, self.compiled.preconditions, self.code.inputs)
        return admitted(self.region, conditions, run, self._answers.eager)

    @property
    def _verifies(self) -> bool:
        return not self._traits.reference and self._policy.verify != "off"

    def _due(self) -> State:
        """The state that follows from what is known."""
        if self._failure:
            return State.LEFT if self._is_told else State.RETIRED
        if self._runs is None:
            return State.UNBOUND
        if self._verifies and self._policy.verify != "first_call":
            return State.WATCHED
        if self._verifies and not self._verification.checks.passed:
            return State.CHECKED
        return State.SETTLED if self._times.done else State.TIMED

    def _enter(self) -> None:
        """Compose the run function of the state that is due."""
        with _changes:
            self._state = state = self._due()
            bare = self._answers.eager if self._runs is None else self._runs.bare
            self._bare = uncounted(restrided(bare, self._restriders), self._written)
            run = restrided(self._body(state), self._restriders)
            if state is State.TIMED:
                run = timed(run, self._times)
            if state in (State.CHECKED, State.TIMED):
                run = self._followed(run)
            self._run = uncounted(run, self._written)

    def _body(self, state: State) -> Run:
        if state is State.RETIRED:
            return self._retiring
        if self._runs is None or state is State.LEFT:
            return self._answers.eager
        return self._runs.verified if state in (State.CHECKED, State.WATCHED) else self._runs.plain

    def _followed(self, run: Run) -> Run:
        """The same run function; the state that is due after a call is entered."""

        def followed(inputs: list[Any]) -> Sequence[Any]:
            outputs = run(inputs)
            if self._due() is not self._state:
                self._enter()
            return outputs

        return followed

    # --- failures ----------------------------------------------------------------------------------------------------

    def retire(self, text: str) -> None:
        """Do not run the code any more: another executor saw it fail. The next call is answered by eager, and the graph
        places the region anew."""
        with _changes:
            self._failure = self._failure or text
            self._enter()

    def _retiring(self, inputs: list[Any]) -> Sequence[Any]:
        outputs = self._answers.eager(inputs)
        self._leave("run", self._failure)
        return outputs

    def _failed(self, inputs: list[Any], error: Exception) -> Sequence[Any]:
        return self._given(self._answers.to_raised(inputs, error), error)

    def _refuted(self, inputs: list[Any], outcome: Outcome) -> Sequence[Any]:
        return self._given(self._answers.to_outcome(inputs, outcome), outcome.error)

    def _given(self, answer: Answer, cause: Exception | None) -> Sequence[Any]:
        if not self._policy.strict:
            self._leave(answer.kind, answer.text)
        if answer.error is not None:
            raise answer.error from cause
        assert answer.outputs is not None, "an answer has outputs or an error"
        return answer.outputs

    def _leave(self, kind: FailureKind, text: str) -> None:
        """Eager runs the region from now on, whatever is bound, until the graph has placed it anew."""
        with _changes:
            self._failure, self._is_told = self._failure or text, True
            self._enter()
        self._faults.append(Failed(self.region, self.backend, kind, text, self.code.fail(text, self)))
