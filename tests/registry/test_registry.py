"""Registration, discovery, duplicates, versions, resolution."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from zlib import crc32

import pytest

from mixbackend import registry
from mixbackend.contracts import (
    CONTRACT_VERSION,
    Availability,
    Backend,
    BackendUnavailableError,
    ContractError,
    ContractVersionError,
    UnknownBackendError,
)

MakeBackend = Callable[..., Backend]


def test_registering_an_instance(backend: MakeBackend) -> None:
    with registry.isolated_registry():
        mine = backend("mine")
        assert registry.register_backend(mine) is mine
        assert registry.get("mine") is mine
        (info,) = registry.backends()
    assert info.available and info.version == "1.2" and info.fingerprint.startswith("fake-fingerprint source=")
    assert (
        info.origin == "registered in this process" and info.contract_version == CONTRACT_VERSION and info.reason == ""
    )


def test_class_decorator_keeps_the_class(backend: MakeBackend) -> None:
    with registry.isolated_registry():

        @registry.register_backend
        class Decorated(type(backend("decorated"))):  # type: ignore[misc]
            name = "decorated"

        assert isinstance(Decorated, type)
        assert isinstance(registry.get("decorated"), Decorated)


def test_the_same_object_twice_is_no_error_another_is(backend: MakeBackend) -> None:
    first, second = backend("twin"), backend("twin")
    with registry.isolated_registry():
        registry.register_backend(first)
        registry.register_backend(first)
        with pytest.raises(ContractError, match=r"two backends are called 'twin'.*Twin.*and .*Twin"):
            registry.register_backend(second)
        assert registry.get("twin") is first


def test_not_a_backend_is_refused() -> None:
    with registry.isolated_registry():
        with pytest.raises(ContractError, match="not a subclass"):
            registry.register_backend(object())
        with pytest.raises(ContractError, match="not a subclass"):
            registry.register_backend(dict)
        assert registry.names() == ()


def test_bad_name_is_refused(backend: MakeBackend) -> None:
    with registry.isolated_registry(), pytest.raises(ContractError, match="no usable name"):
        registry.register_backend(backend("My Backend"))


@pytest.mark.parametrize("version", ["2.0", "0.9", "1.99", "one", None])
def test_incompatible_contract_names_both_versions(backend: MakeBackend, version: object) -> None:
    with registry.isolated_registry():
        with pytest.raises(ContractVersionError) as caught:
            registry.register_backend(backend("other", contract_version=version))
        assert repr(version) in str(caught.value) and repr(CONTRACT_VERSION) in str(caught.value)


def test_unknown_name_suggests_the_nearest(backend: MakeBackend) -> None:
    with registry.isolated_registry(backend("eager"), backend("onnxruntime")):
        with pytest.raises(UnknownBackendError, match="did you mean 'onnxruntime'"):
            registry.get("onnxrutime")
        with pytest.raises(UnknownBackendError, match="there is 'eager', 'onnxruntime'"):
            registry.resolve(["zzz"])


def test_resolve_keeps_the_users_order_and_adds_the_fallback(backend: MakeBackend) -> None:
    with registry.isolated_registry(*map(backend, ("alpha", "eager", "beta", "gamma"))):
        assert [item.name for item in registry.resolve(None)] == ["alpha", "beta", "gamma", "eager"]
        assert [item.name for item in registry.resolve(["gamma", "alpha"])] == ["gamma", "alpha", "eager"]
        assert [item.name for item in registry.resolve(["eager", "alpha", "eager"])] == ["eager", "alpha"]
        assert [item.name for item in registry.resolve([])] == ["eager"]


def test_unavailable_is_skipped_with_its_reason(backend: MakeBackend, caplog: pytest.LogCaptureFixture) -> None:
    with registry.isolated_registry(backend("paid", available=False), backend("eager")):
        with caplog.at_level(logging.WARNING, "mixbackend"):
            assert [item.name for item in registry.resolve(["paid"])] == ["eager"]
        assert "paid needs a license" in caplog.text
        (info,) = registry.skipped(["paid"])
        assert (info.name, info.reason, info.available) == ("paid", "paid needs a license", False)
        assert registry.get("paid").name == "paid"


def test_unavailable_but_required_raises(backend: MakeBackend) -> None:
    with registry.isolated_registry(backend("paid", available=False), backend("eager")):
        with pytest.raises(BackendUnavailableError, match=r"rule of the configuration requires.*needs a license"):
            registry.resolve(["paid"], required={"paid"})
        with pytest.raises(UnknownBackendError):
            registry.resolve(None, required={"piad"})


def test_required_but_not_in_the_list_is_not_resolved(backend: MakeBackend) -> None:
    with registry.isolated_registry(backend("alpha"), backend("eager")):
        assert [item.name for item in registry.resolve(["eager"], required={"alpha"})] == ["eager"]


def test_missing_fallback_is_an_error(backend: MakeBackend) -> None:
    with registry.isolated_registry(backend("eager", available=False)), pytest.raises(BackendUnavailableError):
        registry.resolve(None)


@pytest.mark.parametrize(
    ("method", "broken", "reason"),
    [
        ("availability", lambda self: 1 / 0, r"availability\(\) raised ZeroDivisionError"),
        ("availability", lambda self: True, "returned True instead of an Availability"),
        ("availability", lambda self: Availability(False), "gave no reason"),
        ("fingerprint", lambda self: 1 / 0, r"fingerprint\(\) raised ZeroDivisionError"),
    ],
)
def test_a_lying_backend_is_listed_as_unavailable(
    backend: MakeBackend, method: str, broken: Callable[[Backend], object], reason: str
) -> None:
    import re

    broken_backend = type(backend("broken"))
    setattr(broken_backend, method, broken)
    with registry.isolated_registry(broken_backend()):
        (info,) = registry.backends()
    assert not info.available and re.search(reason, info.reason) and info.fingerprint == ""


@pytest.mark.parametrize("target", ["Vendor", "make"])
def test_entry_point_names_a_class_or_a_factory(install: Callable[..., None], plugin_source: str, target: str) -> None:
    module = f"vendor_{target.lower()}"
    install("vendor-dist", "vendor", module, plugin_source.replace("{version}", "1.0"), target)
    with registry.isolated_registry(discover=True):
        assert "vendor" in registry.names()
        assert module not in sys.modules, "listing names must not import plug-ins"
        info = next(info for info in registry.backends() if info.name == "vendor")
    assert info.available and info.origin == "vendor-dist 3.4" and info.version == "7"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import not_installed_anywhere", "ModuleNotFoundError: No module named 'not_installed_anywhere'"),
        ("raise RuntimeError('driver too old')", "RuntimeError: driver too old"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("Vendor = 3", "not a subclass of"),
        ("x = 1", "AttributeError"),
    ],
)
def test_a_plugin_that_throws_on_import_is_listed_with_its_reason(
    install: Callable[..., None], backend: MakeBackend, source: str, reason: str
) -> None:
    module = f"throws_{crc32(source.encode())}"
    install("broken-dist", "vendor", module, source, "Vendor")
    with registry.isolated_registry(discover=True):
        info = next(info for info in registry.backends() if info.name == "vendor")
        assert not info.available and reason in info.reason and info.origin == "broken-dist 3.4"
        with pytest.raises(BackendUnavailableError, match="cannot be loaded"):
            registry.get("vendor")


def test_a_plugin_for_another_contract_is_listed_with_both_versions(
    install: Callable[..., None], plugin_source: str
) -> None:
    install("old-dist", "vendor", "vendor_of_contract_two", plugin_source.replace("{version}", "2.0"), "Vendor")
    with registry.isolated_registry(discover=True):
        info = next(info for info in registry.backends() if info.name == "vendor")
    assert not info.available and "'2.0'" in info.reason and repr(CONTRACT_VERSION) in info.reason
    assert info.contract_version == "2.0"


def test_an_entry_point_must_carry_the_backends_name(install: Callable[..., None], plugin_source: str) -> None:
    install("misnamed", "wendor", "vendor_misnamed", plugin_source.replace("{version}", "1.0"), "Vendor")
    with registry.isolated_registry(discover=True):
        info = next(info for info in registry.backends() if info.name == "wendor")
    assert not info.available and "'wendor'" in info.reason and "'vendor'" in info.reason


def test_two_distributions_with_one_name_are_an_error_naming_both(install: Callable[..., None]) -> None:
    install("first-dist", "vendor", "vendor_one", "", "Vendor")
    install("second-dist", "vendor", "vendor_two", "", "Vendor")
    with registry.isolated_registry(discover=True):
        for _ in range(2):  # the second question gives the same answer as the first
            with pytest.raises(ContractError, match=r"vendor_one:Vendor \(first-dist 3.4\) and vendor_two:Vendor"):
                registry.names()


def test_a_name_taken_by_a_plugin_cannot_be_registered(install: Callable[..., None], backend: MakeBackend) -> None:
    install("vendor-dist", "vendor", "vendor_taken", "", "Vendor")
    with registry.isolated_registry(discover=True), pytest.raises(ContractError, match=r"vendor-dist 3\.4.*Vendor"):
        registry.register_backend(backend("vendor"))


def test_isolation_restores_the_registry_even_after_an_error(backend: MakeBackend) -> None:
    before = registry.names()
    with pytest.raises(RuntimeError), registry.isolated_registry(backend("temporary")):
        assert registry.names() == ("temporary",)
        raise RuntimeError
    assert registry.names() == before and "temporary" not in before


def test_the_package_of_backends_is_also_the_public_function() -> None:
    program = """
import mixbackend
from mixbackend.callable_packages import make_packages_callable
make_packages_callable()
import mixbackend.backends.common
infos = mixbackend.backends()
assert {"eager", "onnxruntime"} <= {info.name for info in infos}, infos
import mixbackend.backends as again
assert again is mixbackend.backends and again.common.__name__ == "mixbackend.backends.common"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_entry_point_may_name_what_from_dynamo_returns(install: Callable[..., None]) -> None:
    source = """
from mixbackend import from_dynamo

def compile_graph(graph_module, example_inputs):
    return graph_module.forward

backend = from_dynamo(compile_graph, name="dynamo_vendor")
"""
    install("vendor-of-dynamo", "dynamo_vendor", "vendor_of_dynamo", source, "backend")
    with registry.isolated_registry(discover=True):
        (info,) = [item for item in registry.backends() if item.name == "dynamo_vendor"]
        assert not registry.resolution(["dynamo_vendor", "eager"]).local
    assert info.available and info.origin == "vendor-of-dynamo 3.4"
    assert "fn=vendor_of_dynamo.compile_graph of" in info.fingerprint and "in process" not in info.fingerprint
    assert "source=" in info.fingerprint
