"""Regions as engines: built, given weights, opened again in other forms, called at several sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import conv2d, gelu, layer_norm, linear, softmax

from mixbackend.backends.tensorrt.api import Api
from mixbackend.backends.tensorrt.artifact import EngineArtifact
from mixbackend.backends.tensorrt.building import BuildError
from mixbackend.backends.tensorrt.running import MOST_CONTEXTS, StreamOrder
from mixbackend.contracts import Region

from .conftest import GIVEN_ANEW, NEWEST, OLDEST, RELEASES, close, given, known

HALF = torch.float16


def _image(image: Any, weight: Any, bias: Any) -> Any:
    return torch.relu(conv2d(image, weight, bias, padding=1)) + 1


def _image_values(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(2, 3, 8, 8, dtype=dtype), torch.randn(4, 3, 3, 3, dtype=dtype), torch.randn(4, dtype=dtype)]


def _text(tokens: Any, table: Any, weight: Any, bias: Any) -> Any:
    value = torch.nn.functional.embedding(tokens, table)
    return gelu(linear(layer_norm(value, (16,)), weight, bias))


def _text_values(length: int = 5, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    tokens = torch.randint(0, 11, (2, length))
    return [tokens, torch.randn(11, 16, dtype=dtype), torch.randn(24, 16, dtype=dtype), torch.randn(24, dtype=dtype)]


def _called(bench: Any, region: Region, values: list[torch.Tensor]) -> torch.Tensor:
    """Through ``bind``, with nothing but activations handed over at the call."""
    compiled = bench.compile(region)
    inputs = given(region, values)
    bindable = known(region, inputs)
    bound = compiled.bind(bindable)
    handed = [value if constant is None else None for constant, value in zip(bindable, inputs, strict=True)]
    return bound.run(handed)[0]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
def test_bound_engines_give_eagers_results(bench, release, dtype) -> None:
    made = bench(release)
    for function, values in ((_image, _image_values(dtype)), (_text, _text_values(dtype=dtype))):
        region = made.region(function, values, constants=range(1, len(values)))
        assert close(_called(made, region, values), function(*values))


@pytest.mark.parametrize("release", GIVEN_ANEW)
def test_changed_weights_are_given_anew_without_a_build(bench, release) -> None:
    made, values = bench(release), _image_values()
    region = made.region(_image, values, constants=(1, 2))
    compiled = made.compile(region)
    assert made.builds == 1 and "weights are given anew" in compiled.notes
    inputs = given(region, values)
    first = compiled.bind(known(region, inputs))
    before = first.run(inputs)[0].clone()
    values[1].mul_(2)
    second = compiled.bind(known(region, inputs))
    assert close(second.run(inputs)[0], _image(*values))
    assert torch.equal(first.run(inputs)[0], before), "what was bound keeps the weights that it was bound to"
    assert made.builds == 1


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_unbound_calls_are_right_for_every_value_of_the_constants(bench, release) -> None:
    made, values = bench(release), _image_values()
    region = made.region(_image, values, constants=(1, 2))
    compiled = made.compile(region)
    for factor in (1.0, 3.0):
        values[1].mul_(factor)
        assert close(compiled.run(given(region, values))[0], _image(*values))


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_engines_that_cannot_be_given_weights_are_built_when_they_are_bound(bench, release, monkeypatch) -> None:
    monkeypatch.setenv("MIXBACKEND_TENSORRT_REFIT", "1")
    made, values = bench(release, fault="baked"), _image_values()
    region = made.region(_image, values, constants=(1, 2))
    compiled = made.compile(region)
    assert "TensorRT cannot give it all of them anew" in compiled.notes[0]
    inputs = given(region, values)
    assert close(compiled.bind(known(region, inputs)).run(inputs)[0], _image(*values))
    values[1].neg_()
    assert close(compiled.bind(known(region, inputs)).run(inputs)[0], _image(*values))
    assert made.builds == 3
    stored = EngineArtifact.from_bytes(compiled.artifact)
    assert not stored.engine
    again = made.backend.load(region, compiled.artifact)
    assert close(again.bind(known(region, inputs)).run(inputs)[0], _image(*values))


@pytest.mark.parametrize(
    ("release", "wish", "builds", "note"),
    [
        (OLDEST, "", 0, "TensorRT 8.6 with REFIT gives wrong results for transformers in float16"),
        (OLDEST, "1", 1, "weights are given anew"),
        (NEWEST, "", 1, "weights are given anew"),
        (NEWEST, "0", 0, "weights inside, an engine for each of their values: MIXBACKEND_TENSORRT_REFIT=0"),
    ],
)
def test_release_and_environment_say_where_weights_are(bench, release, wish, builds, note, monkeypatch) -> None:
    monkeypatch.setenv("MIXBACKEND_TENSORRT_REFIT", wish)
    made, values = bench(release), _image_values()
    assert made.backend.traits().weights == ("refit" if builds else "baked")
    assert made.backend.fingerprint().endswith(f"refit={builds}")
    region = made.region(_image, values, constants=(1, 2))
    compiled = made.compile(region)
    assert made.builds == builds and note in compiled.notes[-1]
    assert (compiled.prepare_binding is None) == bool(builds)
    inputs = given(region, values)
    for number, factor in enumerate((1.0, 3.0), 1):
        values[1].mul_(factor)
        assert close(compiled.bind(known(region, inputs)).run(inputs)[0], _image(*values))
        assert made.builds == (builds or number)


def test_engines_with_weights_inside_are_named_by_their_values(bench) -> None:
    made, values = bench(), _image_values()
    region = made.region(_image, values, constants=(1, 2))
    inputs = given(region, values)
    bindable = known(region, inputs)
    prepare = made.compile(region).prepare_binding
    first = prepare(bindable)
    expected = _image(*values)
    assert first.digest == prepare([None if value is None else value.clone() for value in bindable]).digest
    values[1][0, 0, 0, 0] = torch.nextafter(values[1][0, 0, 0, 0], torch.tensor(9.0))
    second = prepare(bindable)
    assert first.digest != second.digest
    values[2].copy_(values[2].flip(0))
    assert second.digest != prepare(bindable).digest
    content = first.build()
    assert made.builds == 1
    # The values as they were when they were read, whatever they are now; in another process, too.
    again = made.backend.load(region, made.compile(region).artifact).prepare_binding
    assert close(first.load(content).run(inputs)[0], expected)
    with pytest.raises(ValueError, match="other weights"):
        again(bindable).load(content)
    assert made.builds == 1


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_weights_that_are_expanded_over_the_batch_give_eagers_results(bench, release) -> None:
    made = bench(release)
    product = lambda x, w: torch.relu(torch.bmm(x, w))  # noqa: E731
    values = [torch.randn(16, 3, 8), torch.randn(4, 8).t().expand(16, 8, 4)]
    region = made.region(product, values, constants=(1,))
    assert close(_called(made, region, values), product(*values))
    if release == OLDEST:
        inputs = given(region, values)
        first = made.compile(region).prepare_binding(known(region, inputs)).digest
        values[1][0, 0, 0] += 1
        assert made.compile(region).prepare_binding(known(region, given(region, values))).digest != first


def test_unbound_calls_build_again_only_for_other_values(bench) -> None:
    made, values = bench(), _image_values()
    region = made.region(_image, values, constants=(1, 2))
    run = made.compile(region).run
    for factor, builds in ((1.0, 1), (1.0, 1), (2.0, 2)):
        values[1].mul_(factor)
        assert close(run(given(region, values))[0], _image(*values))
        assert made.builds == builds


@pytest.mark.parametrize("weights", [(), (1, 2)], ids=["none", "given anew"])
def test_a_stored_engine_is_opened_once(bench, weights, monkeypatch) -> None:
    made, values = bench(NEWEST), _image_values()
    function, values = (_image, values) if weights else (lambda x, y: torch.relu(x @ y), [torch.randn(3, 3)] * 2)
    region = made.region(function, values, constants=weights)
    artifact = made.compile(region).artifact
    opened = []
    original = Api.open
    monkeypatch.setattr(Api, "open", lambda api, engine: opened.append(None) or original(api, engine))
    loaded = made.backend.load(region, artifact)
    inputs = given(region, values)
    run = loaded.bind(known(region, inputs)).run if weights else loaded.run
    assert close(run(inputs)[0], function(*values)) and len(opened) == 1
    if weights:
        before = run(inputs)[0].clone()
        values[1].mul_(2)
        assert close(loaded.bind(known(region, inputs)).run(inputs)[0], function(*values)) and len(opened) == 2
        assert torch.equal(run(inputs)[0], before)


@pytest.mark.parametrize("release", GIVEN_ANEW)
def test_stored_engines_are_taken_up_without_a_build(bench, release) -> None:
    made, values = bench(release), _text_values()
    region = made.region(_text, values, constants=(1, 2, 3))
    artifact = made.compile(region).artifact
    loaded = made.backend.load(region, artifact)
    inputs = given(region, values)
    assert close(loaded.bind(known(region, inputs)).run(inputs)[0], _text(*values))
    assert made.builds == 1


def test_engines_of_others_are_refused(bench) -> None:
    made, values = bench(GIVEN_ANEW[0]), _image_values()
    region = made.region(_image, values, constants=(1, 2))
    artifact = made.compile(region).artifact
    other = made.region(lambda *given: _image(*given) * 2, values, constants=(1, 2))
    with pytest.raises(ValueError, match="another model"):
        made.backend.load(other, artifact)
    with pytest.raises(ValueError, match="no engine of this form"):
        made.backend.load(region, b"\\0" + artifact)
    stored = EngineArtifact.from_bytes(artifact)
    damaged = EngineArtifact(stored.digest, stored.profiles, stored.refittable, 1.0, stored.engine[10:])
    with pytest.raises(ValueError, match="does not take the engine"):
        made.backend.load(region, damaged.to_bytes())
    newer = bench(NEWEST)
    with pytest.raises(ValueError, match="does not take the engine"):
        newer.backend.load(region, artifact)


@pytest.mark.parametrize(
    "header", [b"not json", b"{}", b'{"digest": "", "profiles": "", "refittable": 3, "seconds": 1}']
)
def test_damaged_headers_are_told(header) -> None:
    content = b"mixbackend engine 1\n" + len(header).to_bytes(8, "little") + header
    with pytest.raises(ValueError):
        EngineArtifact.from_bytes(content)


def test_live_weights_enter_as_they_lie(bench) -> None:
    made = bench()
    values = [torch.randn(3, 8), torch.randn(6, 8), torch.randn(6)]
    region = made.region(lambda x, w, b: torch.tanh(linear(x, w, b)), values, weights=(1, 2))
    compiled = made.compile(region)
    assert compiled.bind is None
    for factor in (1.0, 2.0):
        values[1].mul_(factor)
        assert close(compiled.run(given(region, values))[0], torch.tanh(linear(*values)))


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_results_are_fresh_at_each_call_and_inputs_may_lie_anyhow(bench, release) -> None:
    made = bench(release)
    values = [torch.randn(8, 3).t(), torch.randn(8, 6)]
    region = made.region(lambda x, w: torch.relu(x @ w), values)
    compiled = made.compile(region)
    first = compiled.run(given(region, values))[0]
    kept = first.clone()
    values[0] = torch.randn(3, 16)[:, ::2]
    second = compiled.run(given(region, values))[0]
    assert close(second, torch.relu(values[0] @ values[1]))
    assert torch.equal(first, kept) and first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_symbolic_sizes_are_served_through_profiles(bench, release) -> None:
    made, values = bench(release), _text_values(length=6)
    region = made.region(_text, values, constants=(1, 2, 3), dynamic=True)
    compiled = made.compile(region)
    inputs = given(region, values)
    bound = compiled.bind(known(region, inputs))
    for rows, length in ((2, 6), (3, 12), (8, 24), (2, 6)):
        tokens = torch.randint(0, 11, (rows, length))
        told = [tokens, *values[1:]]
        assert close(bound.run(given(region, told))[0], _text(*told))
    assert made.builds == 1


def test_sizes_beyond_the_profiles_are_not_admitted(bench) -> None:
    made = bench()
    values = [torch.randn(6, 4), torch.randn(4, 4)]
    region = made.region(lambda x, w: torch.relu(x @ w), values, dynamic=True)
    compiled = made.compile(region)
    told = {str(condition) for condition in compiled.preconditions}
    assert any("at most 24" in text for text in told), told
    values[0] = torch.randn(25, 4)
    with pytest.raises(RuntimeError, match="no optimisation profile serves"):
        compiled.run(given(region, values))


def test_few_contexts_are_kept(bench) -> None:
    made = bench()
    values = [torch.randn(16, 4), torch.randn(4, 4)]
    region = made.region(lambda x, w: torch.relu(x @ w), values, dynamic=True)
    run = made.compile(region).run
    for rows in (*range(4, 4 + 2 * MOST_CONTEXTS), 4):
        values[0] = torch.randn(rows, 4)
        assert close(run(given(region, values))[0], torch.relu(values[0] @ values[1]))
    assert len(run.__self__._contexts) == MOST_CONTEXTS


def test_a_refused_call_is_an_exception(bench) -> None:
    made = bench(fault="run")
    values = [torch.randn(3, 4), torch.randn(4, 4)]
    region = made.region(lambda x, w: softmax(x @ w, -1), values)
    with pytest.raises(RuntimeError, match="refused to run"):
        made.compile(region).run(given(region, values))


@pytest.mark.parametrize(("fault", "wanted"), [("parse", "UNSUPPORTED_NODE"), ("build", "no implementation for node")])
def test_what_tensorrt_says_of_a_refused_build_is_told(bench, fault, wanted) -> None:
    values = _image_values()
    made = bench(NEWEST, fault=fault)
    with pytest.raises(BuildError, match=wanted):
        made.compile(made.region(_image, values, constants=(1, 2)))
    made = bench(OLDEST, fault=fault)
    region = made.region(_image, values, constants=(1, 2))
    with pytest.raises(BuildError, match=wanted):
        made.compile(region).bind(known(region, given(region, values)))


def test_tf32_is_allowed_where_torch_allows_it(bench, precision) -> None:
    made, values = bench(), [torch.randn(3, 4), torch.randn(4, 4)]

    def flags() -> str:
        region = made.region(lambda x, w: torch.relu(x @ w), values)
        return str(bytes(EngineArtifact.from_bytes(made.compile(region).artifact).engine[:300]))

    precision("highest")
    assert "BuilderFlag.TF32" not in flags()
    precision("high")
    assert "BuilderFlag.TF32" in flags()


def test_stored_engines_are_not_copied() -> None:
    stored = EngineArtifact("model", "sizes", frozenset({"w0"}), 2.0, b"engine").to_bytes()
    read = EngineArtifact.from_bytes(stored)
    assert read.engine == b"engine" and read.to_bytes() == stored
    assert isinstance(read.engine, memoryview) and read.engine.obj is stored


def test_a_call_allocates_nothing_but_its_results(bench, monkeypatch) -> None:
    """What else it allocated and kept would lie in the memory of a CUDA graph if the call warms one up."""
    made, values = bench(), _image_values()
    region = made.region(_image, values, constants=(1, 2))
    inputs = given(region, values)
    bound = made.compile(region).bind(known(region, inputs))
    sizes, empty = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **rest: sizes.append(size) or empty(*size, **rest))
    (result,) = bound.run(inputs)
    assert sizes == [(tuple(result.shape),)]


class _Stream:
    """A stream of the GPU's that remembers whom it waited for."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle
        self.waited: list[int] = []

    def wait_stream(self, other: _Stream) -> None:
        self.waited.append(other.cuda_stream)


def test_calls_are_queued_beside_the_default_stream(monkeypatch) -> None:
    """TensorRT waits for the GPU before and after a call there."""
    default, mine, own = _Stream(0), _Stream(1), _Stream(2)
    now = {"stream": default, "capturing": False}
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: now["stream"])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: now["capturing"])
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: own)
    order = StreamOrder(torch.device("cuda:0"))

    def queued() -> int:
        for stream in (default, mine, own):
            stream.waited.clear()
        with order as handle:
            assert not default.waited
        return handle

    for _ in range(2):
        assert queued() == 2
        assert (own.waited, default.waited) == ([0], [2])
    now["stream"] = mine
    assert queued() == 1
    assert (mine.waited, own.waited, default.waited) == ([2], [], [])
    now["stream"] = default
    assert queued() == 2
    assert (own.waited, default.waited) == ([0, 1], [2])
    now.update(stream=mine, capturing=True)
    assert queued() == 1
    assert (mine.waited, own.waited, default.waited) == ([], [], [])
