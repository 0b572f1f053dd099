"""Replay script: a dumped graph, and a script beside it that runs it alone.

Place: written by ``compile.build`` under ``MIXBACKEND_DUMP``. Input: a captured graph and its description. Output:
``graph.region`` (canonical text), ``config.json`` and ``repro.py`` in the dump folder; ``compile.replay`` runs them.
"""

from __future__ import annotations

import torch.fx

from mixbackend.compile.stages import StageDriver
from mixbackend.configuration import Config
from mixbackend.contracts import OpGraph
from mixbackend.graph.regions import whole_region

_SCRIPT = '''"""Runs the dumped graph alone: compile, run, compare with eager."""
from pathlib import Path

from mixbackend.compile.replay import replay

print(replay(Path(__file__).parent))
'''


def write_replay(driver: StageDriver, graph_module: torch.fx.GraphModule, graph: OpGraph, config: Config) -> None:
    """Write the script and what it needs into the dump folder."""
    driver.write("graph.region", whole_region(graph_module, graph).text)
    driver.write("config.json", config.model_dump_json(indent=1))
    driver.write("repro.py", _SCRIPT)
