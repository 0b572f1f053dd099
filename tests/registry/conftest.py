"""Backends and installed plug-ins for the tests of the registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mixbackend.contracts import Availability, Backend, CompiledRegion, OpView, Region, Supported, Traits, Verdict


class Fake(Backend):
    """A backend that exists and does nothing."""

    name = "fake"

    def availability(self) -> Availability:
        return Availability(True, version="9.1")

    def fingerprint(self) -> str:
        return "fake-fingerprint"

    def judge(self, view: OpView) -> Verdict:
        return Supported()

    def compile(self, region: Region) -> CompiledRegion:
        raise NotImplementedError

    def traits(self) -> Traits:
        return Traits()


def make_backend(name: str, available: bool = True, **attributes: object) -> Backend:
    """An instance of a new backend class of this name."""

    def availability(self: Backend) -> Availability:
        return Availability(available, "" if available else f"{name} needs a license", "1.2")

    return type(name.title(), (Fake,), {"name": name, "availability": availability, **attributes})()


@pytest.fixture
def backend() -> Callable[..., Backend]:
    return make_backend


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a distribution with one module and one entry point, as pip would leave it behind."""

    def install_one(distribution: str, name: str, module: str, source: str, target: str) -> None:
        folder = tmp_path / distribution
        information = folder / f"{distribution}-3.4.dist-info"
        information.mkdir(parents=True)
        (folder / f"{module}.py").write_text(source)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 3.4\n")
        (information / "entry_points.txt").write_text(f"[mixbackend.backends]\n{name} = {module}:{target}\n")
        monkeypatch.syspath_prepend(str(folder))

    return install_one


PLUGIN = """
from mixbackend.contracts import Availability, Backend, Supported, Traits

class Vendor(Backend):
    name = "vendor"
    contract_version = "{version}"
    def availability(self): return Availability(True, version="7")
    def fingerprint(self): return "f"
    def judge(self, view): return Supported()
    def compile(self, region): raise NotImplementedError
    def traits(self): return Traits()

def make():
    return Vendor()
"""


@pytest.fixture
def plugin_source() -> str:
    """Source of a plug-in module; ``{version}`` is the contract it was built for."""
    return PLUGIN
