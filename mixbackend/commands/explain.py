"""``mixbackend explain MODEL``: compile a model, run it once, and say what ran where and why.

Input: the name of an entry of the model suite, or ``module:factory`` where calling ``factory()`` gives
``(module, args, kwargs)``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import typer

from mixbackend.commands.output import console, print_json, quiet_stdout
from mixbackend.reporting.text import print_report


def run(model: str, config: str | None, train: bool, device: str, html: Path | None, as_json: bool) -> None:
    """Explain one model."""
    with quiet_stdout():
        module, args, kwargs = load_model(model, train, device)
        from mixbackend.api import explain  # after the model: a wrong name is told at once

        with torch.set_grad_enabled(train):
            report = explain(module, *args, config=config, **kwargs)
    if html is not None:
        report.to_html(html)
    if as_json:
        print_json(report.to_dict())
        return
    if sys.stdout.isatty():
        print_report(report, console())
    else:
        print(report)


def load_model(name: str, train: bool, device: str) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """Module in the right mode, and its arguments, on a device.

    Raises:
        typer.BadParameter: there is no such model, or its factory does not give (module, args, kwargs).
    """
    if ":" in name:
        return _from_factory(name, train, device)
    from mixbackend.benchmarks.models import find

    try:
        entry = find(name)
    except KeyError as error:
        raise typer.BadParameter(f"{error.args[0]}. A model of your own is named as module:factory.") from None
    return entry.load(train=train, device=device)


def _from_factory(path: str, train: bool, device: str) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    module_name, _, factory_name = path.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(import_module(module_name), factory_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise typer.BadParameter(f"{path} cannot be imported from {Path.cwd()}: {error}") from error
    finally:
        sys.path.pop(0)
    made = factory() if callable(factory) else None
    if not isinstance(made, tuple) or len(made) != 3 or not callable(made[0]):
        kind = type(made if callable(factory) else factory).__name__
        raise typer.BadParameter(f"{path} should be a function that gives (module, args, kwargs), not a {kind}")
    model, args, kwargs = made
    if isinstance(model, torch.nn.Module):
        model = model.train(train).to(device)
    return model, _moved(args, device), _moved(kwargs, device)


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_moved(item, device) for item in value) if type(value) in (tuple, list) else value
    return value
