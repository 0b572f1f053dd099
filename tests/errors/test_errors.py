"""Every error code: documented under its own heading, and raised by something that a user can do."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import mixbackend
from mixbackend import registry
from mixbackend.backends.eager import EagerBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.compile.open_environment import open_environment
from mixbackend.configuration import ConfigurationProblemsError, load_config
from mixbackend.contracts import (
    Availability,
    Backend,
    CompiledRegion,
    MixbackendError,
    OpView,
    Region,
    Supported,
    Traits,
    Unsupported,
    Verdict,
    errors,
    lowered,
)
from mixbackend.cost.switches import SWITCH
from mixbackend.graph.trace import trace_region

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"

CLASSES = {
    value.code: value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, MixbackendError)
}


class Broken(Backend):
    """Claims matrix products, and fails with them as told."""

    name = "broken"
    run: Callable[[Sequence[Any]], Sequence[torch.Tensor]] | None = None

    def availability(self) -> Availability:
        return Availability(True)

    def fingerprint(self) -> str:
        return "broken"

    def judge(self, view: OpView) -> Verdict:
        return Supported(0.0) if view.op == "aten.mm.default" else Unsupported("unknown-op")

    def traits(self) -> Traits:
        return Traits()

    def probes(self, device: Any) -> tuple[()]:
        return ()

    def compile(self, region: Region) -> CompiledRegion:
        if self.run is None:
            raise RuntimeError("compiler crashed")
        return CompiledRegion(self.run)


class BrokenAtRunTime(Broken):
    def run(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        raise RuntimeError("kernel crashed")


class Wrong(Broken):
    def run(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        return [torch.zeros(4, 4)]


class Absent(Broken):
    name = "absent"

    def availability(self) -> Availability:
        return Availability(False, "no license")


class Outdated(Broken):
    contract_version = "0.3"


def compile_with(backend: type[Broken], folder: Path, **keys: Any) -> None:
    """Run a matrix product that must go to a broken backend."""
    configuration = {
        "rules": [{"match": {"op": "aten.mm"}, "require": backend.name}],
        "on_failure": "raise",
        "verify": {"when": "always"},
        "cache": {"dir": str(folder / "cache")},
        **keys,
    }
    with registry.isolated_registry(EagerBackend, backend):
        compiled = torch.compile(torch.mm, backend=Mixture(load_config(configuration)))
        with torch.no_grad():
            compiled(torch.randn(4, 4), torch.randn(4, 4))


def raise_quarantined(folder: Path) -> None:
    from mixbackend.graph.trace import trace_region

    region = trace_region(torch.mm, (torch.randn(4, 4), torch.randn(4, 4)))
    backend = Broken()
    with registry.isolated_registry(EagerBackend, backend):
        cache = open_environment(load_config({"cache": {"dir": str(folder / "cache")}})).compile_cache
        cache.quarantine(backend, region, "it crashed before")
        cache.compile(backend, region)


def raise_rate_table(folder: Path) -> None:
    from mixbackend.cost.rate_tables import read_table

    read_table("{}", str(folder / "table.json"))


def raise_lowering(folder: Path) -> None:
    lowered(trace_region(torch.bernoulli, [torch.rand(3)]), "prims")


def raise_storage(folder: Path) -> None:
    from mixbackend.storage.folder import private_folder

    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    private_folder(shared)


def raise_lock(folder: Path) -> None:
    lock = {"path": str(folder / "mixbackend.lock.yaml"), "frozen": True}
    with registry.isolated_registry(EagerBackend):
        compiled = torch.compile(torch.mm, backend=Mixture(load_config({"lock": lock})))
        with torch.no_grad():
            compiled(torch.randn(4, 4), torch.randn(4, 4))


def raise_package_input(folder: Path) -> None:
    mixbackend.export(
        torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), folder / "relu.mix", config={"backends": ["eager"]}
    )
    mixbackend.load(folder / "relu.mix")(torch.ones(3))


def raise_region_text(folder: Path) -> None:
    from mixbackend.contracts.region_reader import read_region_text

    read_region_text("this is no region")


def raise_codegen_ir(folder: Path) -> None:
    import sympy

    from mixbackend.backends.codegen.ir.check import check_kernel
    from mixbackend.backends.codegen.ir.kernel import Kernel, KernelLoop, Nest

    loop = KernelLoop(sympy.Symbol("i0", integer=True), sympy.Integer(4), "parallel")
    check_kernel(Kernel((), (), (), (), (), (Nest((loop,), (), ()),), sympy.Integer(1)))


def raise_codegen_compile(folder: Path) -> None:
    """A compiler that answers questions, and fails when it shall compile."""
    from mixbackend.backends.codegen.backend import CodegenBackend
    from mixbackend.backends.codegen.targets.cpp.target import CppTarget
    from mixbackend.backends.common.compiler import find_compiler
    from mixbackend.graph.trace import trace_region

    compiler = folder / "g++"
    real = shlex.join(find_compiler().command)
    fails = 'case "$*" in *-shared*) echo "disk full" >&2; exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\n{fails}\nexec {real} "$@"\n')
    compiler.chmod(0o700)
    region = trace_region(torch.relu, (torch.randn(4),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(compiler))
        CodegenBackend(CppTarget(folder)).compile(region)


def resolve(*backends: type[Backend], names: list[str], required: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    with registry.isolated_registry(EagerBackend, *backends):
        registry.resolve(names, required)


def raise_input_range(folder: Path) -> None:
    from mixbackend.backends.codegen import CodegenBackend
    from mixbackend.graph.trace import trace_region

    values = [torch.zeros(3, 2), torch.tensor([3])]
    compiled = CodegenBackend().compile(trace_region(lambda table, places: table.index_select(0, places), values))
    compiled.run(values)


def raise_unknown_mode(folder: Path) -> None:
    with registry.isolated_registry(EagerBackend):
        torch.compile(torch.mm, backend=Mixture(load_config(None)), mode="warp-speed")(
            torch.ones(2, 2), torch.ones(2, 2)
        )


TRIGGERS: dict[str, Callable[[Path], object]] = {
    "error": raise_unknown_mode,
    "contract-version": lambda folder: registry.register_backend(Outdated),
    "contract": lambda folder: registry.register_backend(object()),
    "configuration": lambda folder: load_config({"unknown": 1}),
    "unknown-backend": lambda folder: resolve(names=["egaer"]),
    "backend-unavailable": lambda folder: resolve(Absent, names=["absent"], required={"absent"}),
    "placement": lambda folder: compile_with(
        Broken, folder, backends=["eager"], rules=[{"match": {}, "forbid": "eager"}]
    ),
    "region-compile": lambda folder: compile_with(Broken, folder),
    "quarantined": raise_quarantined,
    "region-run": lambda folder: compile_with(BrokenAtRunTime, folder),
    "verification": lambda folder: compile_with(Wrong, folder),
    "region-text": raise_region_text,
    "lowering": raise_lowering,
    "storage": raise_storage,
    "rate-table": raise_rate_table,
    "lock": raise_lock,
    "package": lambda folder: mixbackend.load(folder / "none.mix"),
    "package-input": raise_package_input,
    "codegen-ir": raise_codegen_ir,
    "codegen-compile": raise_codegen_compile,
    "input-range": raise_input_range,
}


def test_every_code_has_a_heading_and_every_heading_a_code() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sorted(headings) == sorted(CLASSES) and len(set(headings)) == len(headings)
    for code, kind in CLASSES.items():
        section = text.split(f"\n## {code}\n")[1].split("\n## ")[0]
        assert f"`{kind.__name__}`" in section, f"the section {code} does not name {kind.__name__}"


def test_codes_are_unique() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, MixbackendError)]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert ConfigurationProblemsError.code == "configuration"


def test_every_code_has_a_trigger() -> None:
    assert set(TRIGGERS) == set(CLASSES)


def innermost(error: BaseException) -> BaseException:
    """What we raised, out of what Dynamo made of it."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, MixbackendError) else error


@pytest.mark.parametrize("code", sorted(TRIGGERS))
def test_a_code_is_raised_by_what_its_section_describes(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "0")
    torch._dynamo.reset()
    with pytest.raises(Exception) as caught:
        TRIGGERS[code](tmp_path)
    error = innermost(caught.value)
    assert isinstance(error, MixbackendError), f"{type(error).__name__}: {error}"
    assert error.code == code and type(error).code == CLASSES[code].code
    assert str(error).startswith(f"[{code}] ") and error.what in str(error)


def test_the_text_has_place_and_advice() -> None:
    error = MixbackendError("it broke", where="layer 3", hint="turn it off")
    assert str(error) == "[error] it broke\n  where: layer 3\n  what to do: turn it off"
    assert (error.what, error.where, error.hint) == ("it broke", "layer 3", "turn it off")
