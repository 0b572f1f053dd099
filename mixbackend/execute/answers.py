"""Answers by eager: what a call returns or raises when the code of its region failed or was found wrong.

Place: below ``execute.region_executor``. Input: a failure in one call. Output: an ``Answer``: eager's result, or the
error to be raised, and what the code is blamed for.
Invariants: eager is asked before any code is blamed: what eager raises, too, is the input's error. Where inputs may
have been written already and nothing can put them back, the answer is an error: eager would write them a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mixbackend.contracts import Backend, MixbackendError, Region
from mixbackend.execute.checked_call import Outcome
from mixbackend.execute.output_forms import MalformedError
from mixbackend.execute.region_errors import FailureKind, failure, half_written, inputs_lost
from mixbackend.execute.run_function import Run
from mixbackend.execute.verify import before_writing, eager_result

VerifyWhen = Literal["off", "first_call", "sampled", "always"]


@dataclass(frozen=True)
class ExecutionPolicy:
    """How an executor behaves.

    Attributes:
        verify: when to hold results against the reference.
        factor: error allowed over eager's own error; the backend's own budget may be wider.
        strict: raise on failure instead of answering by eager.
    """

    verify: VerifyWhen
    factor: float
    strict: bool


def answered(run: Run, failed: Callable[[list[Any], Exception], Sequence[Any]]) -> Run:
    """Code of a region; what it raises is answered by ``failed``."""

    def answering(inputs: list[Any]) -> Sequence[Any]:
        try:
            return run(inputs)
        except Exception as error:
            return failed(inputs, error)

    return answering


@dataclass(frozen=True)
class Answer:
    """The answer to a call that the code failed in.

    Attributes:
        kind, text: what the code is blamed for.
        outputs: what the call returns; ``None`` where it raises ``error``.
    """

    kind: FailureKind
    text: str
    outputs: Sequence[Any] | None = None
    error: MixbackendError | None = None


@dataclass(frozen=True)
class Answers:
    """One region of one graph, as far as eager answers for it.

    Attributes:
        region: what was compiled.
        backend: that compiled it.
        names: what the user calls the region's inputs.
        strict: raise on failure instead of answering.
    """

    region: Region
    backend: Backend
    names: tuple[str, ...]
    strict: bool

    def eager(self, inputs: list[Any]) -> Sequence[Any]:
        """What eager returns."""
        return eager_result(self.region, inputs)

    def to_raised(self, inputs: list[Any], error: Exception, put_back: bool = False) -> Answer:
        """The code raised. Eager is asked first: what it raises is the user's, and no code is to blame for it.

        Args:
            put_back: whether written inputs hold what they held before the call.
        """
        malformed = isinstance(error, MalformedError)
        kind: FailureKind = "verify" if malformed else "run"
        text = str(error) if malformed else f"{type(error).__name__}: {error}"
        written = self.region.written
        if written and not put_back and (malformed or not self.backend.traits().raises_before_writing):
            names = [self.names[place] for place in written]
            return Answer(kind, text, error=half_written(self.backend, self.region, names, text))
        if self.strict:
            with torch.no_grad():
                eager_result(self.region, before_writing(self.region, inputs))
            return Answer(kind, text, error=failure(self.backend, self.region, kind, text))
        return Answer(kind, text, self.eager(inputs))

    def to_outcome(self, inputs: list[Any], outcome: Outcome) -> Answer:
        """A checked call failed."""
        if outcome.lost:
            return self._to_lost(outcome.lost)
        if outcome.error is not None:
            return self.to_raised(inputs, outcome.error, put_back=not outcome.unchecked)
        if self.strict:
            with torch.no_grad():
                eager_result(self.region, before_writing(self.region, inputs))
            error = failure(self.backend, self.region, "verify", outcome.wrong)
            return Answer("verify", outcome.wrong, error=error)
        return Answer("verify", outcome.wrong, self.eager(inputs))

    def _to_lost(self, places: Sequence[int]) -> Answer:
        names = [self.names[place] for place in places]
        text = f"it wrote into {', '.join(names)}, which it had not declared"
        return Answer("verify", text, error=inputs_lost(self.backend, self.region, names))
