"""What is stored of inductor's regions: where inductor's own cache has them."""

from __future__ import annotations

import json

import pytest
import torch

from mixbackend.backends.inductor import InductorBackend
from mixbackend.backends.inductor import backend as inductor_backend
from mixbackend.backends.inductor.reference import Reference
from mixbackend.compile.replay import make_inputs
from mixbackend.contracts import Region
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten


def chain(x, y):
    return aten.transpose(aten.tanh(aten.add(x, y)), 0, 1), aten.sum(aten.mul(x, y), [0])


def region_of(dynamic: bool = False) -> Region:
    return trace_region(chain, [torch.randn(12, 7), torch.randn(7)], dynamic=dynamic)


@pytest.fixture
def not_traced(monkeypatch: pytest.MonkeyPatch):
    """Loading neither traces nor compiles."""

    def refuse(*_args, **_keywords):
        raise AssertionError("this was to be loaded")

    def begin() -> None:
        monkeypatch.setattr(inductor_backend, "retrace_apart", refuse)
        monkeypatch.setattr(inductor_backend, "inductor_compile", refuse)

    return begin


def test_a_loaded_region_is_the_compiled_one(not_traced):
    region = region_of()
    compiled = InductorBackend().compile(region)
    assert compiled.artifact is not None
    not_traced()
    loaded = InductorBackend().load(region, compiled.artifact)
    assert (loaded.strides, loaded.source, loaded.preconditions) == (compiled.strides, compiled.source, ())
    inputs = make_inputs(region)
    for mine, first, eager in zip(
        loaded.run(inputs), compiled.run(inputs), region.graph_module.forward(*inputs), strict=True
    ):
        assert torch.equal(mine, first) and mine.stride() == first.stride()
        torch.testing.assert_close(mine, eager)


@pytest.mark.parametrize(
    "artifact",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff",
        b'{"entry": 3, "surroundings": "", "strides": "as_traced"}',
        b'{"entry": "/tmp/elsewhere", "surroundings": "", "strides": "as_traced"}',
        b'{"entry": "../elsewhere", "surroundings": "", "strides": "as_traced"}',
        b'{"entry": "f\\n", "surroundings": "", "strides": "as_traced"}',
    ],
)
def test_what_is_no_reference_is_refused(artifact: bytes):
    with pytest.raises(ValueError):
        InductorBackend().load(region_of(), artifact)


def test_an_entry_that_is_gone_is_an_error():
    region = region_of()
    artifact = InductorBackend().compile(region).artifact
    assert artifact is not None
    lost = Reference.read(artifact).model_copy(update={"entry": "f" + "b" * 51})
    with pytest.raises(FileNotFoundError):
        InductorBackend().load(region, lost.written())


def test_other_settings_are_not_served():
    region = region_of()
    artifact = InductorBackend().compile(region).artifact
    assert artifact is not None
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        torch.use_deterministic_algorithms(not before)
        with pytest.raises(ValueError, match="settings"):
            InductorBackend().load(region, artifact)
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
    InductorBackend().load(region, artifact)


def test_nothing_is_stored_where_sizes_are_symbolic_or_inductor_stores_nothing():
    assert InductorBackend().compile(region_of(dynamic=True)).artifact is None
    with torch._inductor.config.patch(fx_graph_cache=False):
        assert InductorBackend().compile(region_of()).artifact is None


def test_a_reference_holds_no_code():
    artifact = InductorBackend().compile(region_of()).artifact
    assert artifact is not None
    assert sorted(json.loads(artifact)) == ["entry", "strides", "surroundings"]
