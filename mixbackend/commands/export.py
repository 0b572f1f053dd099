"""``mixbackend export MODEL FILE``: write a package, and show what runs where in it.

Input: a model as ``explain`` takes it, or a file of ``torch.export.save``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from mixbackend.commands.explain import load_model
from mixbackend.commands.output import lines_shown, print_json, quiet_stdout
from mixbackend.configuration import load_config

_SAVED = ".pt2"


@dataclass(frozen=True)
class Wanted:
    """What is exported.

    Attributes:
        model: see the module's docstring.
        file: the package.
        config: configuration file, ``None`` for the defaults.
        device: where the model runs.
        dynamic: whether every size that can be is symbolic.
        measure: whether plans are measured, and the fastest is packaged.
    """

    model: str
    file: Path
    config: str | None = None
    device: str = "cpu"
    dynamic: bool = False
    measure: bool = False


def run(wanted: Wanted, as_json: bool) -> None:
    """Export one model."""
    from mixbackend.package.exporting import export  # torch.export comes with it

    config = load_config(wanted.config)
    if wanted.measure:
        config = config.with_options({"search.mode": "measure"})
    with quiet_stdout(), lines_shown(f"exporting {wanted.model}"):
        report = export(_program(wanted), wanted.file, config=config)
    size = wanted.file.stat().st_size
    if as_json:
        print_json({**report.to_dict(), "package": {"path": str(wanted.file), "bytes": size}})
        return
    print(report)
    print(f"{wanted.file}: {size / 1e6:.1f} MB; mixbackend.load({str(wanted.file)!r}) runs it")
    if config.search.mode == "estimate":
        print("placed by estimates, or as was measured before; with --measure plans race for it")


def _program(wanted: Wanted) -> Any:
    if wanted.model.endswith(_SAVED):
        try:
            return torch.export.load(wanted.model)
        except Exception as error:  # whatever torch says of a file
            raise typer.BadParameter(f"{wanted.model} is no program of torch.export.save: {error}") from error
    model, args, kwargs = load_model(wanted.model, False, wanted.device)
    shapes = None
    if wanted.dynamic:
        shapes = (*(_dynamic(value) for value in args), *(_dynamic(value) for value in kwargs.values()))
    with torch.no_grad():
        return torch.export.export(model, tuple(args), dict(kwargs), dynamic_shapes=shapes)


def _dynamic(value: Any) -> Any:
    """The form in which torch.export is told that sizes may be symbols."""
    if isinstance(value, torch.Tensor):
        return dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO)
    if isinstance(value, Mapping):
        return {key: _dynamic(item) for key, item in value.items()}
    return [_dynamic(item) for item in value] if isinstance(value, (list, tuple)) else None
