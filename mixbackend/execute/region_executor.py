"""The executor of a region: one region of one graph while it runs.

Place: between the stitched function and the code a backend compiled, which equal layers share (``region_code``).
Input: the region's arguments at each call. Output: its results, with the strides that consumers rely on.
Invariants: the caller always gets a right result unless the policy is to raise: a call that fails or is found wrong is
answered by eager, and the failure is reported once to the graph, which places the region anew for later calls. Eager
is asked before anybody is blamed: what it raises, too, is the input's error. Where inputs may have been written already
and nothing can put them back, the call raises. Versions of written inputs stay: torch counts a graph's writes itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from mixbackend.contracts import BoundRun, ErrorBudget, Region
from mixbackend.contracts.region import RunFunction
from mixbackend.contracts.torch_compat import set_versions, versions_of
from mixbackend.execute.answers import Answers, ExecutionPolicy
from mixbackend.execute.checked_call import CheckedRegion, Outcome, checked_call
from mixbackend.execute.output_forms import looked_at
from mixbackend.execute.region_code import MOST_UNPROVED, Checks, Depth, RegionCode
from mixbackend.execute.region_errors import FailureKind
from mixbackend.execute.region_sizes import Sizes, by_sizes, size_classes, size_reader
from mixbackend.execute.timed_calls import TimedCalls
from mixbackend.execute.verify import TF32_FLOOR, eager_result, may_round_to_tf32
from mixbackend.host.threads import sharing

SAMPLE_EVERY = 256
"""With ``verify: sampled``, one call in this many is held against the reference."""


class RegionExecutor(Answers):
    """Runs one region; see the module's docstring.

    Args:
        region: what was compiled.
        code: what was made of it.
        policy: see ``ExecutionPolicy``.
        on_failure: called with (executor, kind, text) after a failure; must not raise.
        tell: called with (executor, text) about checks that could not be made or proved nothing.
        sources: what the user calls inputs, by their names in the graph.
        moving: names of inputs that the graph writes in some region: other threads may, at any time.
    """

    def __init__(
        self,
        region: Region,
        code: RegionCode,
        policy: ExecutionPolicy,
        on_failure: Callable[[RegionExecutor, FailureKind, str], None],
        tell: Callable[[RegionExecutor, str], None],
        sources: Mapping[str, str] = MappingProxyType({}),
        moving: Collection[str] = (),
    ) -> None:
        super().__init__(region, code, policy, on_failure, sources)
        self._tell = tell
        self._moving = frozenset(place for place, item in enumerate(region.inputs) if item.name in moving)
        self._conditions = tuple((size_reader(region, item), item) for item in code.compiled.preconditions)
        self._sizes = size_classes(region)
        self._bound: BoundRun | None = None
        self._times = TimedCalls(region)
        self._calls = 0
        self._unproved: set[Sizes] = set()
        self.rechecked_s = 0.0
        """Seconds of checked calls of all bindings but the first."""
        self._checks = code.unbound
        self._steady = self._later_calls()
        self._run = self._prepared(code.compiled.run)
        self._call = self._first_call()
        code.used_by(self)

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the region on tensors and numbers in the order of ``region.inputs``."""
        return self._uncounted(self._call, inputs) if self._written else self._call(inputs)

    def unguarded(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the region for a recording: nothing is verified or timed, and what it raises is raised."""
        if self._conditions and not self._admissible(inputs):
            return eager_result(self.region, inputs)
        return self._restride(self._uncounted(self._run, inputs) if self._written else self._run(inputs))

    @property
    def settled(self) -> bool:
        """Whether calls at sizes that came before are not held against the reference any more: they do nothing but
        run."""
        return self._call not in (self._checked, self._always, self._sampled) and not self._unproved

    @property
    def measured_s(self) -> float | None:
        """Median seconds of a few calls, the first ones or those after ``time_again``; ``None`` before."""
        return self._times.median_s

    def time_again(self) -> None:
        """Time the next calls instead of the first ones; an executor that still verifies times those that come
        after."""
        if self._call == self._steady:
            self._call = self._timed
        elif self._call == self._settled:
            self._call = self._reference
        self._times.begin_again()

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
        bound = self.compiled.bind(constants)
        self._run, self._bound = self._prepared(bound.run), bound
        self._checks = Checks(bound=True, later=self._checks is not self.code.unbound)
        self._steady = self._later_calls()
        self._unproved.clear()
        if not self._retired:
            self._call = self._first_call()

    def run_eager(self) -> None:
        """Run what eager runs, for any values, until it is bound again: nothing is verified or timed meanwhile."""
        self._bound = None
        self._run = lambda inputs: eager_result(self.region, inputs)
        if not self._retired:
            self._call = self._settled

    def _prepared(self, run: RunFunction) -> RunFunction:
        """The backend's code as it is called: in turn, while torch's threads do not take the cores from its own."""
        run = self.code.serialised(run, lambda inner: sharing.parked(self._traits.thread_pool, inner))
        return run if self._traits.reference or self._traits.fixed_outputs else looked_at(self.region, run)

    # --- calls -------------------------------------------------------------------------------------------------------

    def _later_calls(self) -> Callable[[list[Any]], Sequence[Any]]:
        """Calls that tell nothing new, unless their sizes are far from those that were checked."""
        if self._traits.reference or self._policy.verify == "off":
            return self._fast
        return by_sizes(self.region, self._checks.passed, self._fast, self._checked)

    def _first_call(self) -> Callable[[list[Any]], Sequence[Any]]:
        if self._traits.reference:
            return self._reference
        calls = {"off": self._timed, "always": self._always, "sampled": self._sampled, "first_call": self._checked}
        return calls[self._policy.verify]

    def _reference(self, inputs: list[Any]) -> Sequence[Any]:
        """Eager: what it raises is what the user's code raises."""
        start = self._times.now()
        outputs = self._settled(inputs)
        if self._times.done and self._call == self._reference:
            self._call = self._settled
        self._times.add_since(start)
        return outputs

    def _settled(self, inputs: list[Any]) -> Sequence[Any]:
        return self._restride(self._run(inputs))

    def _fast(self, inputs: list[Any]) -> Sequence[Any]:
        if self._conditions and not self._admissible(inputs):
            return eager_result(self.region, inputs)
        try:
            outputs = self._run(inputs)
        except Exception as error:
            return self._failed(inputs, error)
        return self._restride(outputs) if self._restriders else outputs

    def _timed(self, inputs: list[Any]) -> Sequence[Any]:
        start = self._times.now()
        outputs = self._steady(inputs)
        self._times.add_since(start)
        if self._times.done and self._call == self._timed:
            self._call = self._steady
        return outputs

    def _always(self, inputs: list[Any]) -> Sequence[Any]:
        return self._check(inputs, "whole", self._sizes(inputs))

    def _sampled(self, inputs: list[Any]) -> Sequence[Any]:
        self._calls += 1
        if self._calls % SAMPLE_EVERY == 0:
            return self._check(inputs, "whole", self._sizes(inputs))
        return self._checked(inputs)

    def _checked(self, inputs: list[Any]) -> Sequence[Any]:
        """A call that is held against the reference, unless this code was at such sizes before."""
        sizes = self._sizes(inputs)
        depth = self.code.depth(self._checks, sizes)
        if depth != "none":
            return self._check(inputs, depth, sizes)
        self._checks.passed.add(sizes)
        self._unproved.discard(sizes)
        if self._call == self._checked:
            self._call = self._timed
            return self._timed(inputs)
        return self._fast(inputs)

    def _check(self, inputs: list[Any], depth: Depth, sizes: Sizes) -> Sequence[Any]:
        if not self._admissible(inputs):
            return eager_result(self.region, inputs)
        checks, start = self._checks, time.monotonic()
        checked = CheckedRegion(self.region, self.compiled, self._budget(), self._names, self._moving)
        outcome = checked_call(checked, self._run, inputs, depth)
        self.rechecked_s += time.monotonic() - start if checks.later else 0.0
        if outcome.lost:
            return self._lost(outcome.lost)
        if outcome.error is not None:
            return self._failed(inputs, outcome.error, put_back=not outcome.unchecked)
        if outcome.wrong:
            return self._wrong(inputs, outcome.wrong)
        if outcome.unchecked or not outcome.proves:
            self._proved_nothing(checks, sizes, outcome)
        else:
            self.code.found_right(checks, sizes, depth)
            self._unproved.discard(sizes)
        if self._call == self._checked and sizes in checks.passed:
            self._call = self._timed
        return self._fast(inputs) if outcome.outputs is None else self._restride(outcome.outputs)

    def _proved_nothing(self, checks: Checks, sizes: Sizes, outcome: Outcome) -> None:
        last = self.code.found_unproved(checks, sizes)
        (self._unproved.discard if last else self._unproved.add)(sizes)
        if outcome.unchecked:
            self._tell(self, f"a call was not checked: {outcome.unchecked}")
        elif last:
            reason = "all inputs were zero, or all outputs constant"
            self._tell(
                self, f"taken as right unproved: in {MOST_UNPROVED} checked calls {reason}; this is not remembered"
            )

    def _uncounted(self, call: Callable[[list[Any]], Sequence[Any]], inputs: list[Any]) -> Sequence[Any]:
        """A call whose writes do not count: torch counts one for each input that a graph writes, when it is done."""
        written = [inputs[place] for place in self._written]
        versions = versions_of(written)
        try:
            return call(inputs)
        finally:
            set_versions(written, versions)

    def _admissible(self, inputs: list[Any]) -> bool:
        return all(condition.holds(read(inputs)) for read, condition in self._conditions)

    def _budget(self) -> ErrorBudget:
        own = self._traits.error_budget
        floor = max(own.floor, TF32_FLOOR) if may_round_to_tf32(self.region) else own.floor
        return ErrorBudget(max(own.factor, self._policy.factor), floor)
