"""``mixbackend.load``: from a package to what is called.

Place: behind ``mixbackend/__init__.py``. Input: a path. Output: a ``PackagedProgram``.
Order: the file is opened and its manifest checked; which backends can be used here, and which may have artifacts
loaded; the weights are mapped; each graph is read and goes the way of ``compile.driver``, with the package's plans and
artifacts.
Invariants: nothing is unpickled. Native code of the package is loaded only if the caller lets it, from a file that no
other user can write to. Whatever cannot be used here is an event and runs elsewhere, or, on demand, an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from mixbackend.compile.driver import compile_graph
from mixbackend.compile.executable import Executable, run_by_eager
from mixbackend.configuration import Config, load_config
from mixbackend.contracts import MixbackendError, PackageError
from mixbackend.graph.identity import Captured
from mixbackend.locking.differences import Difference
from mixbackend.package.arguments import Arguments
from mixbackend.package.conditions import Here, conditions_here
from mixbackend.package.container import PackageFile
from mixbackend.package.model import PackagedGraph
from mixbackend.package.packaged_store import packaged_environment
from mixbackend.package.plans import PackagedPlans
from mixbackend.package.program import Method, PackagedProgram, Variant
from mixbackend.package.substitutes import adapted
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event
from mixbackend.reporting.events import ORDINARY
from mixbackend.select.decision import UNTUNED


class PackageDifferencesError(PackageError):
    """Something is not as it was when a package was made; ``differences`` holds all of it."""

    def __init__(self, path: Path, differences: Sequence[Difference]) -> None:
        self.differences = tuple(differences)
        text = "".join(f"\n    {line}" for item in self.differences for line in item.lines())
        super().__init__(
            what=f"what is here is not what {path} was made with (- the package, + here){text}",
            hint="load it without strict=True, or make it anew here with mixbackend.export",
        )


def load(
    path: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | Config | None = None,
    native_code: bool = True,
    strict: bool = False,
) -> PackagedProgram:
    """Load a package that ``mixbackend.export`` wrote.

    The file is trusted as a shared library is: compiled regions in it are native code that runs in this process. It
    must belong to you or the administrator, and no other user may be able to write to it.

    Args:
        path: of the file.
        config: see ``mixbackend.auto``: the cache, when to verify, what to do on failure.
        native_code: whether compiled regions that are native code are loaded; without, their backends compile them
            here, or others run them.
        strict: whether anything that is not as it was when the package was made is an error, with all of it.

    Raises:
        PackageError: it is no package, damaged, of a newer version, not to be trusted, or ``strict`` found differences.
        ConfigurationError: see ``mixbackend.auto``.
    """
    given = load_config(config).with_options({"select": "off", "lock": {"path": None, "frozen": False}})  # type: ignore[arg-type]
    package = PackageFile(path)
    try:
        return _loaded(package, given, native_code, strict)
    except BaseException:
        package.close()
        raise


def _loaded(package: PackageFile, config: Config, native_code: bool, strict: bool) -> PackagedProgram:
    here = conditions_here(package.manifest, package.read, _no_native_code(package, native_code))
    if strict and here.differences:
        raise PackageDifferencesError(package.path, here.differences)
    environment = packaged_environment(config, package, here)
    for item in here.differences:
        text = f"{item.what}: {item.locked} when the package was made, here {item.here}"
        environment.events.append(Event("package", "", "", "", text))
    graphs = {name: [_graph(package, member) for member in own] for name, own in package.manifest.methods.items()}
    weights = _weights(package)
    methods = {
        name: Method(name, [_variant(package, graph, weights, environment, here, strict) for graph in own])
        for name, own in graphs.items()
    }
    trouble = [event for event in environment.events.events() if event.kind not in ORDINARY]
    if strict and trouble:
        raise PackageDifferencesError(package.path, [Difference(item.graph, str(item)) for item in trouble])
    return PackagedProgram(package.path, methods, weights, environment)


def _no_native_code(package: PackageFile, wanted: bool) -> str:
    """Why native code of a package is not loaded; empty if it is.

    Raises:
        PackageError: it is wanted, and others can write to the file.
    """
    if not wanted:
        return "native code of packages is not wanted"
    problem = package.distrusted()
    if problem and any(item.native for item in package.manifest.backends):
        raise PackageError(
            f"native code of {package.path} is not loaded: it {problem}",
            hint="make the file yours alone (chmod go-w), or load it with native_code=False",
        )
    return ""


def _graph(package: PackageFile, member: str) -> PackagedGraph:
    try:
        return PackagedGraph.model_validate_json(package.read(member))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise PackageError(f"{package.path}: {member} is not well formed: {where}: {first['msg']}") from error


def _weights(package: PackageFile) -> dict[str, torch.Tensor]:
    """All weights; names of the same view have the same tensor."""
    mapped = package.weights()
    known: dict[Any, torch.Tensor] = {}
    found = {}
    for name, weight in package.manifest.weights.items():
        if weight not in known:
            known[weight] = mapped.tensor(weight)
        found[name] = known[weight]
    return found


def _variant(
    package: PackageFile,
    graph: PackagedGraph,
    weights: Mapping[str, torch.Tensor],
    environment: Environment,
    here: Here,
    strict: bool,
) -> Variant:
    try:
        own = tuple(weights[name] for name in graph.weights)
        arguments = Arguments(graph.signature)
        executable = _executable(graph, environment, here, strict)
    except PackageError:
        raise
    except (MixbackendError, KeyError) as error:
        raise PackageError(f"{package.path}: graph {graph.id} cannot be read: {error}") from error
    return Variant(graph, arguments, executable, own)


def _executable(graph: PackagedGraph, environment: Environment, here: Here, strict: bool) -> Executable:
    traced = graph.graph.traced().read()
    captured = Captured(traced.module, traced.phase, dict(traced.roles), graph.id, traced.sharing)
    if graph.plan is None:
        return run_by_eager(captured, environment)
    # As it was planned: without constants where nothing could watch them.
    config = environment.config.with_options({"weights": "live"}) if not graph.plan.constants else environment.config
    loaded = frozenset(name for name, _ in here.agreed)
    plans = PackagedPlans(graph.plan, partial(adapted, here=here), loaded, here.missing, strict)
    return compile_graph(captured, replace(environment, config=config), UNTUNED, plans.propose)
