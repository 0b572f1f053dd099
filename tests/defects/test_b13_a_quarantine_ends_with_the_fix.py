"""B13: what a plug-in failed at is asked again once its source has changed, whatever its own fingerprint says."""

from __future__ import annotations

import importlib.util
import site
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from flat_costs import FlatCosts

from mixbackend import plug_in_source, registry
from mixbackend.backends.eager import EagerBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.contracts import Backend
from mixbackend.cost import costs as costs_module
from mixbackend.registry import isolated_registry

PLUGIN = """
from mixbackend.contracts import Availability, Backend, CompiledRegion, Supported, Traits, Unsupported

class Vendor(Backend):
    name = "vendor"
    contract_version = "1.0"
    def availability(self): return Availability(True)
    def fingerprint(self): return "vendor 1"
    def traits(self): return Traits()
    def judge(self, view): return Supported() if view.op == "aten.sin.default" else Unsupported("unknown-op")
    def compile(self, region):
        forward = region.graph_module.forward
        def run(inputs):
            {body}
            return [item.clone() for item in forward(*inputs)]
        return CompiledRegion(run)
"""
FAULTY = PLUGIN.replace("{body}", "raise RuntimeError('not yet')")
MENDED = PLUGIN.replace("{body}", "pass")


@pytest.fixture(autouse=True)
def _flat_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = FlatCosts(seconds={"eager": 1e-3})
    monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: costs)


@pytest.fixture(params=["module", "package"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of a plug-in that is worked on, alone or beside the class's file in a package."""
    if request.param == "module":
        return tmp_path / "vendor_of_b13.py"
    package = tmp_path / "vendor_of_b13"
    package.mkdir()
    (package / "__init__.py").touch()
    return package / "backend.py"


def loaded(place: Path, text: str) -> Backend:
    """The plug-in as a new process has it."""
    place.write_text(text)
    spec = importlib.util.spec_from_file_location("vendor_of_b13", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["vendor_of_b13"] = module
    exec(compile(text, str(place), "exec"), module.__dict__)  # no stale bytecode of the second before
    backend: Backend = module.Vendor()
    return backend


def owner(backend: Backend, folder: Path) -> str:
    """Who runs a sine in the end."""
    settings = {"backends": ["vendor", "eager"], "cache": {"dir": str(folder / "cache")}, "on_failure": "repair"}
    torch._dynamo.reset()
    with isolated_registry(backend, EagerBackend()):
        mixture = Mixture(load_config(settings))
        x = torch.randn(5)
        torch.testing.assert_close(torch.compile(torch.sin, backend=mixture)(x), torch.sin(x))
        (graph,) = mixture.report().graphs
    return graph.plan.regions[0].backend


def fingerprint(backend: Backend) -> str:
    with isolated_registry(backend, EagerBackend()):
        return next(info.fingerprint for info in registry.backends() if info.name == backend.name)


def test_the_mended_plug_in_is_asked_again(place: Path, tmp_path: Path) -> None:
    assert owner(loaded(place, FAULTY), tmp_path) == "eager"
    assert owner(loaded(place, FAULTY), tmp_path) == "eager", "the same source stays quarantined"
    assert owner(loaded(place, MENDED), tmp_path) == "vendor"


def test_equal_sources_have_equal_fingerprints_wherever_they_lie(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    first, second = (fingerprint(loaded(folder / "vendor_of_b13.py", MENDED)) for folder in (one, two))
    assert first == second and first.startswith("vendor 1 source=")
    assert fingerprint(loaded(one / "vendor_of_b13.py", FAULTY)) != first


def test_a_module_beside_the_class_counts_where_they_are_a_package(tmp_path: Path) -> None:
    package = tmp_path / "vendor_of_b13"
    (package / "kernels").mkdir(parents=True)
    for folder in (package, package / "kernels"):
        (folder / "__init__.py").touch()
    (package / "kernels" / "sine.cpp").write_text("1")
    before = fingerprint(loaded(package / "backend.py", MENDED))
    (package / "kernels" / "sine.cpp").write_text("2")
    assert fingerprint(loaded(package / "backend.py", MENDED)) != before


def test_a_class_without_a_file_is_told_by_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    import linecache

    digests = []
    for number, text in enumerate((FAULTY, MENDED, MENDED)):
        name = f"<cell {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        module = ModuleType("cell_of_b13")
        module.__dict__["__file__"] = name
        monkeypatch.setitem(sys.modules, "cell_of_b13", module)
        exec(compile(text, name, "exec"), module.__dict__)
        digests.append(plug_in_source.source_digest(module.Vendor()))
    assert digests[0] != digests[1] == digests[2] != ""


def test_what_is_installed_is_told_by_its_own_fingerprint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh_process: None
) -> None:
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    assert fingerprint(loaded(tmp_path / "vendor_of_b13.py", MENDED)) == "vendor 1"
    assert plug_in_source.source_digest(EagerBackend()) == ""
