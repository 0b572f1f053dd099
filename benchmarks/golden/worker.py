"""Runs graphs one after the other and writes the text of each.

Place: a process of its own, started by ``__main__``. Input: names of graphs, the folder of the record. Output: a file
per graph: what it returned, then per captured graph the dumped text of every stage and the text for a GPU, the report.
Uses public names and what ``MIXBACKEND_DUMP`` writes, so that internals may change.
Invariants: every graph has an object of its own (its cache folder makes it one), and Dynamo begins anew for each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import mixbackend
from mixbackend.benchmarks.golden.graphs import GRAPHS, Graph
from mixbackend.benchmarks.golden.masks import ENDED_WITHOUT_TEXT, masked, report_text
from mixbackend.benchmarks.golden.triton_text import triton_texts
from mixbackend.benchmarks.models.trees import tensors_in

STAGES = {
    "capture": "captured graph",
    "describe": "description",
    "place": "plan",
    "cut": "graphs handed to backends",
    "compile": "generated code",
    "stitch": "generated Python",
}
"""Names of stages in dumped files, and what they are called in the record whatever the stages are called."""

_IMPORTS = (
    "import sys; {statement}; ours = [name for name in sys.modules if name.partition('.')[0] == 'mixbackend'];"
    "print(len(ours), 'of ours,', 'torch' if 'torch' in sys.modules else 'no torch')"
)


def work(names: Sequence[str], folder: Path) -> None:
    """Write the files of these graphs; of ``package``, what the package gives out and imports."""
    for name in names:
        start = time.perf_counter()
        text = _package() if name == "package" else _graph(GRAPHS[name])
        (folder / f"{name}.txt").write_text(text.rstrip() + "\n", encoding="utf-8")
        print(f"{name} {time.perf_counter() - start:.1f} s", flush=True)


def _graph(graph: Graph) -> str:
    with tempfile.TemporaryDirectory() as place:
        dump = Path(place) / "dump"
        os.environ["MIXBACKEND_DUMP"] = str(dump)
        torch.compiler.reset()
        try:
            return "\n".join(_sections(graph, dump, Path(place) / "cache"))
        except Exception:
            return masked(f"{ENDED_WITHOUT_TEXT}\n{traceback.format_exc()}")


def _sections(graph: Graph, dump: Path, cache: Path) -> Iterator[str]:
    cache.mkdir(mode=0o700)
    backend = mixbackend.auto({"select": "off", "cache": {"dir": str(cache)}, **graph.configuration})
    returned = list(run(graph, backend))
    yield f"===== returned\n{chr(10).join(returned)}"
    # A joint graph has a folder for its passes alone: what is planned are its halves.
    for captured in sorted(folder for folder in dump.iterdir() if any(folder.glob("*_capture.txt"))):
        files = {path.stem.partition("_")[2]: path.read_text() for path in sorted(captured.glob("*.txt"))}
        for stage, title in STAGES.items():
            yield f"===== {captured.name}: {title}\n{masked(files.get(stage, 'nothing'))}"
        yield f"===== {captured.name}: code for a GPU\n{masked(triton_texts(files.get('cut', '')))}"
    yield f"===== report\n{report_text(backend.report().to_dict())}"


def run(graph: Graph, backend: Any) -> Iterator[str]:
    """Call a graph as often as it says; what every call returned and left behind, in words."""
    torch.manual_seed(0)
    function, calls, loss = graph.make()
    compiled = torch.compile(function, backend=backend, dynamic=graph.dynamic)
    for number, (args, kwargs) in enumerate(calls):
        torch.manual_seed(number)
        with torch.set_grad_enabled(graph.train):
            result = compiled(*args, **kwargs)
            tensors = [item for item in tensors_in(result) if isinstance(item, torch.Tensor)]
            yield f"call {number}: {'; '.join(map(_words, tensors))}"
            if graph.train:
                loss(result).backward()
    if isinstance(function, torch.nn.Module):
        named = [*function.named_parameters(), *function.named_buffers()]
        gradients = [name for name, item in named if item.grad is not None]
        yield f"gradients: {' '.join(gradients)}"
        counted = [f"{name}={item.item()}" for name, item in function.named_buffers() if item.numel() == 1]
        yield f"buffers: {' '.join(counted)}"


def _words(tensor: torch.Tensor) -> str:
    """What its caller sees of a tensor, but for its values."""
    kind = f"view of {tuple(tensor._base.shape)}" if tensor._base is not None else "no view"
    return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {kind} grad={tensor.requires_grad}"


def _package() -> str:
    from mixbackend import contracts

    lines = ["===== modules loaded"]
    for statement in ("import mixbackend", "import mixbackend; mixbackend.auto()"):
        command = [sys.executable, "-c", _IMPORTS.format(statement=statement)]
        lines.append(
            f"{statement}: {subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()}"
        )
    lines += ["===== mixbackend.__all__", *sorted(mixbackend.__all__)]
    lines += ["===== mixbackend.contracts.__all__", *sorted(contracts.__all__)]
    lines += ["===== backends", *(f"{item.name} {item.available}" for item in mixbackend.backends())]
    return "\n".join(lines)
