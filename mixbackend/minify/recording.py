"""Recording: a model run as it is placed, where eager computes every region and its inputs are handed over.

Place: first step of minification. Input: graphs from torch.compile, or a dumped one. Output: to ``told``, each planned
region with the values of one call, in the order in which they run.
Invariants: no backend compiles or runs anything in this process: it may crash. Graphs are prepared and placed as
``compile.driver`` does, by the same decisions; later plans that calls would try are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.certify.variants import copies
from mixbackend.compile.build import cut_as_planned
from mixbackend.compile.driver import prepared_graph, why_only_eager
from mixbackend.compile.mixture import Mixture
from mixbackend.compile.propose import by_estimates, propose
from mixbackend.configuration import Config
from mixbackend.contracts.torch_compat import without_dispatch_modes
from mixbackend.execute.run_function import Run
from mixbackend.execute.stitch import stitch
from mixbackend.execute.unwritten_values import write_out_zeros
from mixbackend.graph.identity import Captured
from mixbackend.graph.prepared import Prepared
from mixbackend.graph.regions import BoundRegion
from mixbackend.graph.traced import Traced
from mixbackend.minify.piece import Piece
from mixbackend.plan.environment import Environment


@dataclass(frozen=True, eq=False)
class Recorded:
    """A region as it came up.

    Attributes:
        bound: as it was cut.
        piece: with the values of one call.
        environment: that it was planned in.
    """

    bound: BoundRegion
    piece: Piece
    environment: Environment

    @property
    def backend(self) -> str:
        """Name of its backend."""
        return self.bound.planned.backend

    @property
    def estimated_s(self) -> float:
        """What a call was estimated to take."""
        return self.bound.planned.estimated_s


Told = Callable[[Recorded], None]


class RecordingMixture(Mixture):
    """A backend of ``torch.compile`` that records; see the module's docstring.

    Args:
        config: what the user asked for.
        told: gets every region of a backend other than the reference, each time that it runs.
    """

    def __init__(self, config: Config, told: Told) -> None:
        super().__init__(config)
        self._told = told
        self.left_out: list[str] = []
        """Graphs that eager runs whole, with the reason."""

    def recorded(self, captured: Captured, environment: Environment) -> Run:
        """What runs a graph in eager, region by region."""
        write_out_zeros(captured.module)
        reason = why_only_eager(captured)
        if reason:
            self.left_out.append(f"{captured.id}: {reason}")
            return _in_eager(captured)
        prepared = prepared_graph(captured, environment)
        sized = propose(captured, prepared, environment).sized or by_estimates(captured, prepared, environment)
        bound = cut_as_planned(sized.home, environment)
        layout = sized.home.layout
        calls = [self._call(item, environment) for item in bound]
        stitched = stitch(layout.module, layout.graph, bound, calls)
        return _with_constants(prepared, stitched.run)

    def of_dump(self, captured: Captured) -> Run:
        """The same of a graph that was read from a dump."""
        return self.recorded(captured, self.environment(self.config))

    def _compiled(self, environment: Environment, traced: Traced) -> Run:
        graph_id = self._graphs.new_id(traced.phase)
        captured = Captured(traced.module, traced.phase, dict(traced.roles), graph_id, traced.sharing)
        return self.recorded(captured, environment)

    def _call(self, bound: BoundRegion, environment: Environment) -> Callable[[list[Any]], Sequence[Any]]:
        region = bound.region
        if environment.planner.backend(bound.planned.backend).traits().reference or not region.outputs:
            return lambda inputs: region.graph_module.forward(*inputs)

        def call(inputs: list[Any]) -> Sequence[Any]:
            with without_dispatch_modes(), torch.no_grad():
                self._told(Recorded(bound, Piece(region, tuple(copies(inputs))), environment))
            results: Sequence[Any] = region.graph_module.forward(*inputs)
            return results

        return call


def _in_eager(captured: Captured) -> Run:
    def run(arguments: list[Any]) -> Sequence[Any]:
        values = list(arguments)
        arguments.clear()
        results: Sequence[Any] = captured.module.forward(*values)
        return results

    return run


def _with_constants(prepared: Prepared, run: Run) -> Run:
    """What takes the inputs of the captured graph, where constants were split off."""
    split = prepared.split
    if split is None:
        return run

    def running(arguments: list[Any]) -> Sequence[Any]:
        weights = [arguments[place].detach() for place in split.weights]
        constants = split.constants.forward(*weights)
        values = [*(arguments[place] for place in split.others), *constants]
        arguments.clear()
        return run(values)

    return running
