"""Replay: a dumped graph as a script that runs alone.

Place: called by the script that ``compile.replay_script`` writes, run by people.
Input: a dump folder. Output: the report, and the largest difference from eager.
Invariants: inputs are made from their metas with a fixed seed; the replay goes through the same pipeline.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.contracts import Region, SymbolicSize, TensorMeta, hint_of
from mixbackend.contracts.region_text import read_region_text
from mixbackend.execute.state_restore import Changes, RepeatedCall


def replay(folder: Path) -> str:
    """Compile and run a dumped graph.

    Returns:
        The report, and the largest difference from eager.
    """
    region = read_region_text((folder / "graph.region").read_text())
    mixture = Mixture(load_config(folder / "config.json"))
    call = RepeatedCall(make_inputs(region), Changes.of_region(region))
    run = mixture.compile_captured(region.graph_module, region.phase, {})
    # Copies: a result may be an input that is put back for eager.
    outputs = [value.clone() for value in call.by(run)()]
    expected = call.by(lambda values: region.graph_module.forward(*values))()
    gaps = [_difference(mine, eager) for mine, eager in zip(outputs, expected, strict=True)]
    return f"{mixture.report()}\nlargest difference from eager: {max(gaps, default=0.0):.3g}"


def make_inputs(region: Region) -> list[Any]:
    """Random inputs that fit a region's metas; symbolic sizes take their hints."""
    generator = torch.Generator().manual_seed(0)
    values: list[Any] = []
    for item in region.inputs:
        if isinstance(item.meta, TensorMeta):
            values.append(_tensor(item.meta, generator))
        else:
            values.append(hint_of(item.meta) if isinstance(item.meta, SymbolicSize) else item.meta)
    return values


def _tensor(meta: TensorMeta, generator: torch.Generator) -> torch.Tensor:
    shape = [hint_of(size) for size in meta.shape]
    stride = [hint_of(step) for step in meta.stride]
    needed = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True) if size > 0)
    storage = torch.rand(max(needed, 1), generator=generator)
    if not (meta.dtype.is_floating_point or meta.dtype.is_complex):
        storage = storage * 2
    return storage.to(meta.dtype).as_strided(shape, stride).to(meta.device)


def _difference(mine: torch.Tensor, eager: torch.Tensor) -> float:
    if mine.numel() == 0:
        return 0.0
    return float((mine.to(torch.float64) - eager.to(torch.float64)).abs().max())
