"""The adapter against recorded descriptions of real releases: it uses nothing that one of them lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
import torch
from onnx import helper

from mixbackend.backends.tensorrt.api import Api, Settings
from mixbackend.backends.tensorrt.versions import Release

from .conftest import RELEASES

_SETTINGS = Settings(workspace_bytes=1 << 30, level=3, refit=True, tf32=False, halves=True)


def _model(path: Any) -> str:
    """``float(half(x) * w) + 1``: a graph of two types."""
    weight = onnx.numpy_helper.from_array(numpy.full((3,), 2, numpy.float16), "w0")
    one = onnx.numpy_helper.from_array(numpy.ones((1,), numpy.float32), "one")
    nodes = [
        helper.make_node("Mul", ["x", "w0"], ["scaled"]),
        helper.make_node("Cast", ["scaled"], ["wide"], to=1),
        helper.make_node("Add", ["wide", "one"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", 10, [2, 3])]
    outputs = [helper.make_tensor_value_info("y", 1, [2, 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight, one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return str(path)


def _built(api: Api, path: str, told: list[str]) -> bytes:
    builder = api.trt.Builder(api.logger)
    network = api.network(builder)
    parser = api.trt.OnnxParser(network, api.logger)
    assert parser.parse_from_file(path)
    api.hold_types(network, Path(path))
    config = api.configuration(builder, _SETTINGS, told.append)
    assert config._limits == {"MemoryPoolType.WORKSPACE": 1 << 30}
    assert "BuilderFlag.TF32" not in config._flags
    return bytes(builder.build_serialized_network(network, config))


@pytest.mark.parametrize("release", RELEASES)
def test_every_step_has_its_names_in_every_release(stand_in, tmp_path, release) -> None:
    logged: list[str] = []
    told: list[str] = []
    api = Api(stand_in(release), logged.append)
    engine = api.open(_built(api, _model(tmp_path / "model.onnx"), told))
    assert bool(told) == api.release.strongly_typed, "monitors of progress came with release 10"
    assert api.input_names(engine) == ("x",) and api.output_names(engine) == ("y",)
    assert api.dtype(engine.get_tensor_dtype("x")) is torch.float16
    assert "w0" in api.refittable(engine)
    api.refit(engine, [("w0", torch.full((3,), 3.0, dtype=torch.float16))])
    context, scratch = api.context(engine), torch.empty(api.scratch_bytes(engine), dtype=torch.uint8)
    api.give_scratch(context, scratch.data_ptr(), scratch.numel())
    x, y = torch.ones(2, 3, dtype=torch.float16), torch.empty(2, 3)
    context.set_tensor_address("x", x.data_ptr())
    context.set_tensor_address("y", y.data_ptr())
    assert context.execute_async_v3(0)
    assert torch.equal(y, torch.full((2, 3), 4.0))
    assert not logged


@pytest.mark.parametrize("release", RELEASES)
def test_what_it_does_not_take_is_told(stand_in, tmp_path, release) -> None:
    api = Api(stand_in(release), lambda message: None)
    with pytest.raises(ValueError, match="does not take the engine"):
        api.open(b"something else")
    engine = api.open(_built(api, _model(tmp_path / "model.onnx"), []))
    with pytest.raises(RuntimeError, match=r"float16\(4,\) for the weight w0"):
        api.refit(engine, [("w0", torch.zeros(4, dtype=torch.float16))])
    with pytest.raises(ValueError, match="no tensors of"):
        api.dtype(api.trt.DataType.UINT8)


def test_external_tactics_are_never_used(stand_in) -> None:
    for release in RELEASES:
        api = Api(stand_in(release), lambda message: None)
        config = api.configuration(api.trt.Builder(api.logger), _SETTINGS, lambda text: None)
        sources = api.trt.TacticSource.__members__
        used = {name for name, source in sources.items() if config._tactics >> int(source) & 1}
        assert used == {"EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"}


def test_warnings_of_the_library_are_handed_on(stand_in) -> None:
    logged: list[str] = []
    api = Api(stand_in(), logged.append)
    for severity in range(5):
        api.logger.log(severity, f"severity {severity}")
    assert logged == ["severity 0", "severity 1", "severity 2"]


def test_releases_and_what_they_can() -> None:
    assert not Release.of("8.6.0").refusal and not Release.of("11.4.0.106").refusal
    assert "8.5 is not served" in Release.of("8.5.3.1").refusal
    assert "needed 8.6 to 11" in Release.of("12.0.1").refusal
    assert torch.bfloat16 not in Release.of("8.6.1").types and torch.int64 in Release.of("10.0.1").types
    assert Release.of("8.6.0").newest_capability == (9, 0) and Release.of("10.0.1").newest_capability is None
    with pytest.raises(ValueError):
        Release.of("nightly")
