"""The one driver through which every stage of the pipeline runs: it times, prints, dumps and names what failed.

Place: around each stage, and around each graph pass. Input: a stage's name and function. Output: the function's value,
unchanged.
What is printed and written, ``host.debug`` says.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch.fx

from mixbackend.graph.passes import GraphPass
from mixbackend.host.debug import DebugSettings

Value = TypeVar("Value")

_FILE_ORDER = ("capture", "describe", "place", "cut", "compile", "stitch")


@dataclass
class StageDriver:
    """Runs the stages of one graph.

    Attributes:
        graph_id: for messages and the dump folder.
        settings: see ``DebugSettings``.
        seconds: (stage or graph pass, seconds) in the order they ran.
    """

    graph_id: str
    settings: DebugSettings
    seconds: list[tuple[str, float]] = field(default_factory=list)

    def run(
        self, name: str, function: Callable[..., Value], *arguments: Any, show: Callable[[Value], str] = str
    ) -> Value:
        """Run one stage.

        Args:
            name: of the stage.
            function: does the work on the arguments.
            show: complete and deterministic text of the value, for printing and dumping.
        """
        start = time.perf_counter()
        value = function(*arguments)
        elapsed = time.perf_counter() - start
        self.seconds.append((name, elapsed))
        if self.settings.level >= 2:
            self.say(f"{name} took {elapsed * 1e3:.1f} ms")
        if self.settings.level >= 5 or (self.settings.level >= 3 and name == "place"):
            self.say(show(value))
        if self.settings.level >= 4 and name == "stitch":
            self.say(show(value))
        if self.settings.dump is not None:
            self.write(f"{self._number(name):02d}_{name}.txt", show(value))
        return value

    def run_pass(self, item: GraphPass, graph_module: torch.fx.GraphModule) -> int:
        """Run one graph pass if it applies and, where results are right without it, there is fuel for it.

        Returns:
            How many places of the graph it changed.
        """
        if not item.applies(graph_module) or (item.optional and not self.settings.passes.take(lambda: item.name)):
            return 0
        start = time.perf_counter()
        changed = item.rewrite(graph_module)
        elapsed = time.perf_counter() - start
        self.seconds.append((item.name, elapsed))
        if self.settings.level >= 2:
            self.say(f"pass {item.name} changed {changed} places in {elapsed * 1e3:.1f} ms")
        if self.settings.dump is not None and changed:
            number = len(self.seconds)
            self.write(f"00_{number}_{item.name}.txt", graph_module.print_readable(print_output=False))
        return changed

    def _number(self, name: str) -> int:
        return _FILE_ORDER.index(name) * 10

    def say(self, text: str) -> None:
        """Print lines with the graph's name in front."""
        for line in text.splitlines():
            print(f"mixbackend {self.graph_id}: {line}", file=sys.stderr)

    def write(self, file_name: str, text: str) -> None:
        """Write one file into this graph's dump folder."""
        if self.settings.dump is None:
            return
        folder = self.settings.dump / self.graph_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file_name).write_text(text)
