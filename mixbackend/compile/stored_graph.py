"""Stored graphs: what torch's cache of AOTAutograd keeps of a compiled graph, so that later processes skip tracing.

Place: what ``mixture`` returns to AOTAutograd for each graph; loaded with the first compilation. Input: a traced graph,
and the request that it came with. Output: a callable; pickled by torch, the graph's text and the request, nothing that
was compiled.
In a process that finds it, the text is read, and the graph is compiled as one that was traced there would be: the plan
comes from the database, code from the artifacts, as in any later process. A backward is read at its first call.
Invariants: what is stored holds plain values alone; a graph without a text is not stored. A result is found by equal
requests of equal sources alone (``tag_of``). The mixture that asks for a result compiles it.
Non-goals: plans and code, which ``storage`` keeps; jobs of several ranks (their graphs are to be cut alike).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from mixbackend.contracts import CONTRACT_VERSION, RegionTextError
from mixbackend.contracts.torch_compat import (
    KeptUntilStored,
    StoredResults,
    no_result_to_store,
    without_dispatch_modes,
)
from mixbackend.contracts.torch_compat.stored_results import StoredResult
from mixbackend.execute.run_function import Run
from mixbackend.graph.capture import run_of
from mixbackend.graph.traced import Traced, TracedText
from mixbackend.host.debug import DebugSettings
from mixbackend.host.own_sources import own_sources
from mixbackend.plan.environment import Environment
from mixbackend.storage.folder import usual_cache_folder
from mixbackend.storage.job import job_here

CompilerOf = Callable[[str | None, Mapping[str, Any] | None], Callable[[Traced], Run]]
"""Of a mixture: what compiles graphs with a mode and options of torch.compile. Pickled, it names the configuration."""


@dataclass(frozen=True)
class Request:
    """What a graph was compiled for.

    Attributes:
        compiler_of: of the mixture; unpickled, of the process's mixture with that configuration.
        mode, options: of torch.compile.
    """

    compiler_of: CompilerOf
    mode: str | None = None
    options: Mapping[str, Any] | None = None

    def compiler(self) -> Callable[[Traced], Run]:
        """Of the mixture that asks for the graph; without one, of its own."""
        compiler_of = _asking.get() or self.compiler_of
        return compiler_of(self.mode, self.options)


_asking: ContextVar[CompilerOf | None] = ContextVar("mixbackend_asking", default=None)


@contextlib.contextmanager
def asked_by(compiler_of: CompilerOf) -> Iterator[None]:
    """Context in which graphs that are found are compiled by one mixture."""
    token = _asking.set(compiler_of)
    try:
        yield
    finally:
        _asking.reset(token)


class StoredGraph(StoredResult):
    """See the module's docstring.

    Args:
        request: what it was compiled for.
        traced: the graph.
        run: calls what was compiled of it.
    """

    def __init__(self, request: Request, traced: Traced, run: Run) -> None:
        super().__init__()
        self._request = request
        self._traced: Traced | None = traced
        self._text: TracedText | None = None
        self._run: Run | None = run

    @classmethod
    def compiled(cls, request: Request, compile_graph: Callable[[Traced], Run], kept: bool, traced: Traced) -> Run:
        """Compile a traced graph.

        Args:
            kept: whether AOTAutograd is to keep it.
        """
        graph = cls(request, traced, run_of(traced, compile_graph))
        if kept and traced.phase == "backward":
            graph._keep()
        return graph

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Run the graph; empties the list."""
        return self._run(inputs)  # type: ignore[misc,arg-type]

    def _keep(self) -> None:
        """Have AOTAutograd keep a backward that it compiles late."""
        run, setting = self._run, KeptUntilStored()

        def first(arguments: list[Any]) -> Sequence[Any]:
            setting.end()
            assert run is not None
            self._run = run
            return run(arguments)

        self._run = first
        setting.begin()

    # --- stored and found --------------------------------------------------------------------------------------------

    def prepare_for_serialization(self) -> None:
        """Leave plain values alone."""
        if self._text is None:
            assert self._traced is not None
            try:
                # AOTAutograd's fake mode must not see the constants that are written.
                with without_dispatch_modes():
                    self._text = self._traced.text()
            except RegionTextError as error:
                raise no_result_to_store(f"mixbackend has no text for the graph: {error}") from error
        self._traced = self._run = None

    def found(self) -> None:
        """Compile the graph; a backward at its first call."""
        text = self._text
        assert text is not None
        compile_graph = self._request.compiler()
        if text.phase == "backward":
            self._run = partial(self._late, text, compile_graph)
        else:
            self._run = run_of(text.read(), compile_graph)

    def _late(self, text: TracedText, compile_graph: Callable[[Traced], Run], arguments: list[Any]) -> Sequence[Any]:
        self._run = run = run_of(text.read(), compile_graph)
        return run(arguments)


def results_of(environment: Environment) -> StoredResults | None:
    """How results of an environment are kept and found; ``None`` where they are not.

    What has no name in another process is not kept: backends of this process alone, planted rates. What must be seen
    to be traced (locked graphs, what measures joint graphs, dumps) is traced.
    """
    measures = environment.config.search.mode == "measure"
    watched = environment.debug != DebugSettings() or environment.debug.passes.limited
    if environment.planner.stored is None or environment.lock is not None or measures or watched:
        return None
    return StoredResults(StoredGraph, f" mixbackend {tag_of(environment)}") if job_here() is None else None


def tag_of(environment: Environment) -> str:
    """A digest of all that makes graphs of one environment what they are, beside what torch tells apart."""
    facts = [
        *(CONTRACT_VERSION, own_sources(), environment.config.model_dump(mode="json"), environment.records),
        *(list(environment.fingerprints.items()), str(usual_cache_folder())),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
