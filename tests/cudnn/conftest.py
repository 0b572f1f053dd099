"""Functions traced on fake tensors of a GPU, judged, placed and written as cuDNN regions; no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from mixbackend.backends.cudnn import CudnnBackend
from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import DeviceModel, InputRole, NodeMatch, Plan, Preference, Region, Unsupported
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.cost.priors import prior_rates
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner import place
from mixbackend.partitioner.roofline import RooflineCostModel

GPU = DeviceModel(
    "cuda:0 synthetic", (("float32", 5e13), ("float16", 8e14), ("bfloat16", 8e14)), 4e12, 3e7, 8e12, 5e-6, 1
)
_PREFERRED = Preference(NodeMatch(), "prefer", "cudnn", factor=1e-3)


class Bench:
    """Places and writes."""

    def __init__(self) -> None:
        self.backend = CudnnBackend()
        self.backends = [self.backend, EagerBackend()]
        self.mode = fresh_fake_mode()
        self.costs = RooflineCostModel(GPU, {item.name: prior_rates(item, GPU) for item in self.backends})

    def tensors(
        self, *shapes: Sequence[int], dtype: torch.dtype = torch.float16, channels_last: bool = False
    ) -> list[Any]:
        """Fake tensors of one GPU; those of rank 4 channels-last if wanted."""
        formats = [torch.channels_last if channels_last and len(shape) == 4 else None for shape in shapes]
        with self.mode:
            return [
                torch.empty(tuple(shape), dtype=dtype, device="cuda", memory_format=form)
                if form
                else torch.empty(tuple(shape), dtype=dtype, device="cuda")
                for shape, form in zip(shapes, formats, strict=True)
            ]

    def refusals(self, function: Callable[..., Any], *inputs: Any, phase: Any = "inference") -> list[Unsupported]:
        """Every refusal of the backend for a function's ops."""
        _, graph = trace_graph(function, inputs, phase=phase)
        verdicts = [self.backend.judge(graph.view(node.name)) for node in graph.placed_nodes]
        return [verdict for verdict in verdicts if isinstance(verdict, Unsupported)]

    def plan(self, function: Callable[..., Any], *inputs: Any, preferred: bool = False) -> Plan:
        """Where the planner puts a function's ops, eager being the other choice."""
        graph = trace_graph(function, inputs)[1]
        return place(graph, self.backends, self.costs, preferences=[_PREFERRED] if preferred else [])

    def region(self, function: Callable[..., Any], *inputs: Any, constants: Sequence[int] = ()) -> Region:
        """A function that must become one region of this backend."""
        roles = {index: PlaceholderRole(InputRole.CONSTANT) for index in constants}
        module, graph = trace_graph(function, inputs, roles=roles)
        plan = place(graph, self.backends, self.costs, preferences=[_PREFERRED])
        assert [item.backend for item in plan.regions] == ["cudnn"], plan
        return cut_regions(module, graph, plan)[0].region


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()
