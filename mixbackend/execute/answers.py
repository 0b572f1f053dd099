"""Answers by eager: what a call returns or raises when the code of its region failed or was found wrong.

Place: what ``execute.region_executor`` builds on. Input: a failure in one call. Output: eager's result, or an error;
the graph is told once, and places the region anew for later calls.
Invariants: eager is asked before anybody is blamed: what it raises, too, is the input's error. Where inputs may have
been written already and nothing can put them back, the call raises: eager would write them a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NoReturn

import torch

from mixbackend.contracts import Region
from mixbackend.execute.output_forms import MalformedError
from mixbackend.execute.region_code import RegionCode
from mixbackend.execute.region_errors import FailureKind, failure, half_written, inputs_lost
from mixbackend.execute.strides import restriders
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


class Answers:
    """One region of one graph, as far as eager answers for it.

    Args:
        region: what was compiled.
        code: what was made of it.
        policy: see ``ExecutionPolicy``.
        on_failure: called with (executor, kind, text) after a failure; must not raise.
        sources: what the user calls inputs, by their names in the graph.
    """

    def __init__(
        self,
        region: Region,
        code: RegionCode,
        policy: ExecutionPolicy,
        on_failure: Callable[[Any, FailureKind, str], None],
        sources: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.region = region
        self.code = code
        self.backend = code.backend
        self.compiled = code.compiled
        self._policy = policy
        self._on_failure = on_failure
        self._names = tuple(sources.get(item.name, item.name) for item in region.inputs)
        self._traits = code.backend.traits()
        self._written = region.written
        self._restriders = restriders(region, code.compiled)
        self._retired = ""
        self._call: Callable[[list[Any]], Sequence[Any]] = self._by_eager

    def _by_eager(self, inputs: list[Any]) -> Sequence[Any]:
        return self._restride(eager_result(self.region, inputs))

    def _restride(self, outputs: Sequence[Any]) -> Sequence[Any]:
        if not self._restriders:
            return outputs
        changed = list(outputs)
        for index, restride in self._restriders:
            changed[index] = restride(changed[index])
        return changed

    def retire(self, text: str) -> None:
        """Do not run the code any more: another executor saw it fail. The next call is answered by eager, and the graph
        places the region anew."""
        self._retired = text
        self._call = self._after_retiring

    def _after_retiring(self, inputs: list[Any]) -> Sequence[Any]:
        outputs = self._by_eager(inputs)
        self._leave("run", self._retired)
        return outputs

    def _failed(self, inputs: list[Any], error: Exception, put_back: bool = False) -> Sequence[Any]:
        """The code raised. Eager is asked first: what it raises is the user's, and no backend is to blame for it.

        Args:
            put_back: whether written inputs hold what they held before the call.
        """
        malformed = isinstance(error, MalformedError)
        kind: FailureKind = "verify" if malformed else "run"
        text = str(error) if malformed else f"{type(error).__name__}: {error}"
        if self._written and not put_back and (malformed or not self._traits.raises_before_writing):
            if not self._policy.strict:
                self._leave(kind, text)
            names = [self._names[place] for place in self._written]
            raise half_written(self.backend, self.region, names, text) from error
        if self._policy.strict:
            with torch.no_grad():
                eager_result(self.region, before_writing(self.region, inputs))
            raise failure(self.backend, self.region, kind, text) from error
        outputs = self._by_eager(inputs)
        self._leave(kind, text)
        return outputs

    def _wrong(self, inputs: list[Any], text: str) -> Sequence[Any]:
        if self._policy.strict:
            raise failure(self.backend, self.region, "verify", text)
        outputs = self._by_eager(inputs)
        self._leave("verify", text)
        return outputs

    def _lost(self, places: Sequence[int]) -> NoReturn:
        names = [self._names[place] for place in places]
        if not self._policy.strict:
            self._leave("verify", f"it wrote into {', '.join(names)}, which it had not declared")
        raise inputs_lost(self.backend, self.region, names)

    def _leave(self, kind: FailureKind, text: str) -> None:
        """Eager runs the region from now on, whatever is bound, until the graph has placed it anew."""
        self._retired = text
        self._call = self._by_eager
        self._on_failure(self, kind, text)
