"""The Triton target: what it takes, what it keeps, and what it says where there is no GPU."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from triton_programs import HARDWARE, backend, printed, program_of

from mixbackend.backends.codegen.backend import CodegenBackend
from mixbackend.backends.codegen.targets.triton.target import TritonTarget
from mixbackend.contracts import CodegenError, Supported, Unsupported
from mixbackend.graph.trace import trace_region

pytest.importorskip("triton", reason="Triton is not installed")


aten = torch.ops.aten
PLACES = torch.zeros(5, 7, dtype=torch.int64)


def verdicts(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[Any]:
    region = trace_region(function, inputs)
    return [backend().judge(view) for view in region.views]


def test_updates_that_cannot_meet_in_hardware_are_refused() -> None:
    x, places = torch.ones(5, 7), torch.zeros(5, 7, dtype=torch.int64)
    (verdict,) = verdicts(lambda x, i: x.scatter_reduce(1, i, x, "amax"), [x, places])
    assert isinstance(verdict, Unsupported) and "updates that max" in verdict.detail
    assert verdicts(lambda x, i: x.scatter_add(1, i, x), [x, places]) == [Supported()]


@pytest.mark.parametrize(
    ("function", "inputs", "taken"),
    [
        (lambda x, i: aten.scatter_add(x, 1, i, x), [torch.ones(5, 7), PLACES], False),
        (lambda x, i: aten.scatter(x, 1, i, x), [torch.ones(5, 7), PLACES], False),
        (lambda x, i: aten.index_put(x, [i[0]], x[:1], True), [torch.ones(5, 7), PLACES], False),
        (lambda x, i: aten.embedding_dense_backward(x, i[:, 0], 5, -1, False), [torch.ones(5, 7), PLACES], False),
        (lambda x, i: aten.scatter_add(x, 1, i, x), [torch.ones(5, 7, dtype=torch.int64), PLACES], True),
        (lambda x, i: aten.scatter(x, 1, i, 2.0), [torch.ones(5, 7), PLACES], True),
        (lambda x, i: aten.gather(x, 1, i).sum(), [torch.ones(5, 7), PLACES], True),
    ],
)
def test_updates_in_any_order_are_refused_where_results_must_repeat(function, inputs, taken) -> None:
    assert not any(isinstance(item, Unsupported) for item in verdicts(function, inputs))
    torch.use_deterministic_algorithms(True)
    try:
        found = verdicts(function, inputs)
    finally:
        torch.use_deterministic_algorithms(False)
    codes = [item.code for item in found if isinstance(item, Unsupported)]
    assert codes == ([] if taken else ["deterministic"])


def test_operators_without_text_are_refused() -> None:
    x = torch.ones(5, dtype=torch.int64)
    (verdict,) = verdicts(lambda x, y: torch.pow(x, y), [x, x])
    assert verdict == Unsupported("argument", "the target has no pow of torch.int64")


def test_there_is_no_template() -> None:
    q = torch.randn(1, 2, 4, 8)
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    found = verdicts(lambda q: attention(q, q, q)[0], [q])
    assert Unsupported("unknown-op", "the target has no template attention") in found
    assert backend().patterns() == ()


def test_without_a_gpu_the_processor_has_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = TritonTarget().availability()
    assert not answer.available and answer.reason == "torch sees no GPU"
    assert list(CodegenBackend().targets) == ["cpu"]
    assert CodegenBackend().traits().device_types == {"cpu"}


def test_without_triton_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'mixbackend[gpu]'" in TritonTarget().availability().reason


def test_equal_kernels_are_one_text() -> None:
    made = printed("layer_norm", torch.float32)
    again = printed("layer_norm", torch.float32)
    assert made == again and len(made.texts) == 1


def test_sizes_that_are_symbols_are_arguments() -> None:
    made = printed("symbolic_points", torch.float32)
    assert [kind for _, kind in made.texts[0].signature].count("i32") > 0
    assert "p[" in made.values


def test_an_artifact_is_loaded_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of("sum_of_all", torch.float32)
    compiled = TritonTarget(HARDWARE).compile(program)
    assert compiled.artifact is not None
    monkeypatch.setattr("mixbackend.backends.codegen.targets.triton.target.compile_texts", None)
    loaded = TritonTarget(HARDWARE).load(program.call_table, compiled.artifact)
    assert loaded.source == compiled.source and "tl.sum" in loaded.source


def test_an_artifact_of_another_gpu_is_refused() -> None:
    program = program_of("sum_of_all", torch.float32)
    artifact = TritonTarget(HARDWARE).compile(program).artifact
    assert artifact is not None
    content = json.loads(zlib.decompress(artifact))
    content["fingerprint"] = "another"
    with pytest.raises(CodegenError, match="another program or GPU"):
        TritonTarget(HARDWARE).load(program.call_table, zlib.compress(json.dumps(content).encode()))
    with pytest.raises(CodegenError, match="cannot be read"):
        TritonTarget(HARDWARE).load(program.call_table, artifact[:50])
