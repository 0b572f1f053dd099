"""``mixbackend explain MODEL``: compile a model, run it once, and say what ran where and why.

Input: the name of an entry of the model suite, or ``module:factory`` where calling ``factory()`` gives
``(module, args, kwargs)``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import typer

from mixbackend.commands.output import PLAIN_WIDTH, console, print_json, quiet_stdout
from mixbackend.commands.this_folder import modules_of_this_folder
from mixbackend.configuration import Config, load_config
from mixbackend.host.stack_samples import Sampler, seconds_by_stack
from mixbackend.reporting import NodeAnswer
from mixbackend.reporting.node_answer import answers_text, print_answers
from mixbackend.reporting.report import SCHEMA, print_report
from mixbackend.reporting.why import MOST_NODES

MOST_PLACED = 8
"""With ``--why``, so many alternatives of each graph are also placed with everything else free to follow."""


def run(
    model: str,
    config: str | None,
    train: bool,
    device: str,
    html: Path | None,
    against: Path | None,
    lock: Path | None,
    frozen: bool,
    why: Sequence[str],
    as_json: bool,
    full: bool = False,
) -> None:
    """Explain one model; as a lock file says, if one is given here or by the configuration.

    Args:
        html: also write the report there, with stacks of compiling.
        against: an earlier report that ``--json`` wrote, which the page compares with.
        why: patterns of nodes, operators and modules: explain these instead of giving the whole report.
        full: every region and event by itself.
    """
    given = _with_lock(load_config(config), lock, frozen)
    earlier = None if against is None else _earlier(against, html)
    sampler = None if html is None else Sampler()
    with quiet_stdout():
        module, args, kwargs = load_model(model, train, device)
        from mixbackend.api import compiled_once  # after the model: a wrong name is told at once

        with torch.set_grad_enabled(train), sampler or nullcontext():
            mixture = compiled_once(module, args, kwargs, given)
        report = mixture.report(advice=not why)
        answers = report.why(*why, placed=MOST_PLACED) if why else ()
    if html is not None:
        stacks = None if sampler is None else seconds_by_stack(sampler.samples)
        report.to_html(html, title=f"{model}, {'training' if train else 'inference'}", against=earlier, stacks=stacks)
    if why:
        _tell_why(answers, as_json)
        return
    if as_json:
        print_json(report.to_dict())
        return
    if sys.stdout.isatty():
        print_report(report, console(), full)
    else:
        print(report.to_text(full=full))


def _earlier(path: Path, html: Path | None) -> Mapping[str, Any]:
    if html is None:
        raise typer.BadParameter("--against is for the page: give --html FILE too")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("graphs"), list):
        raise typer.BadParameter(
            f"{path} is no report of schema {SCHEMA}: `mixbackend explain MODEL --json` writes one"
        )
    return found


def _tell_why(answers: Sequence[NodeAnswer], as_json: bool) -> None:
    if as_json:
        print_json({"schema": SCHEMA, "why": [answer.to_dict() for answer in answers]})
        return
    if sys.stdout.isatty():
        print_answers(answers, console())
    else:
        print(answers_text(answers, PLAIN_WIDTH))
    if len(answers) >= MOST_NODES:
        print(f"only {MOST_NODES} nodes are explained: a narrower pattern shows others")


def _with_lock(config: Config, lock: Path | None, frozen: bool) -> Config:
    path = str(lock) if lock is not None else config.lock.path
    if frozen and path is None:
        raise typer.BadParameter("--frozen needs a lock file: --lock FILE, or lock.path in the configuration")
    return config.with_options({"lock": {"path": path, "frozen": frozen or config.lock.frozen}})


def load_model(name: str, train: bool, device: str) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """Module in the right mode, and its arguments, on a device.

    Raises:
        typer.BadParameter: there is no such model, or its factory does not give (module, args, kwargs).
    """
    if ":" in name:
        return _from_factory(name, train, device)
    from mixbackend.benchmarks.models.registry import find

    try:
        entry = find(name)
    except KeyError as error:
        raise typer.BadParameter(f"{error.args[0]}. A model of your own is named as module:factory.") from None
    return entry.load(train=train, device=device)


def _from_factory(path: str, train: bool, device: str) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    module_name, _, factory_name = path.partition(":")
    with modules_of_this_folder():
        try:
            factory = getattr(import_module(module_name), factory_name)
        except (ImportError, AttributeError, ValueError) as error:
            raise typer.BadParameter(f"{path} cannot be imported from {Path.cwd()}: {error}") from error
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
