"""A process that measures a candidate has torch's switch for deterministic algorithms as the asking one had it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mixbackend.compile import trial_worker as worker
from mixbackend.graph.trace import trace_region
from mixbackend.plan.choice import DEFAULT
from mixbackend.select.request import TrialRequest
from mixbackend.select.values import write_values


class Watching:
    """A mixture that notes the switch when it compiles, and when it runs."""

    seen: list[bool]

    def __init__(self, config: Any) -> None:
        type(self).seen = []

    def compile_captured(self, module: torch.fx.GraphModule, *told: Any) -> Any:
        self.seen.append(torch.are_deterministic_algorithms_enabled())

        def run(values: list[Any]) -> Any:
            self.seen.append(torch.are_deterministic_algorithms_enabled())
            return module(*values)

        return run

    def report(self) -> Any:
        return SimpleNamespace(events=[])


@pytest.mark.parametrize("asked", [True, False])
def test_workers_have_the_switch_of_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    torch.use_deterministic_algorithms(asked)
    try:
        region = trace_region(lambda value: value.relu(), [torch.ones(3)])
        torch.use_deterministic_algorithms(not asked)
        request = TrialRequest(tmp_path, DEFAULT, 1)
        request.graph_file.write_text(region.text)
        request.config_file.write_text("{}")
        write_values(tmp_path, [torch.ones(3)])
        monkeypatch.setattr(worker, "Mixture", Watching)
        worker._compiled(request)
        assert Watching.seen == [asked, asked]
    finally:
        torch.use_deterministic_algorithms(False)
