"""A peer's process from inside, with a tiny model: references, comparisons, warming up, training steps."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mixbackend.benchmarks.models.torchvision_shim import enable_torchvision
from mixbackend.benchmarks.peers import executors, machine, reference, worker
from mixbackend.benchmarks.peers.models import PeerModel, next_token_loss, square_loss
from mixbackend.benchmarks.peers.request import PeerCase, PeerRequest
from mixbackend.cost.switches import SWITCH


def make(batch: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    module = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.GELU(), nn.Linear(16, 4))
    return module, (torch.randn(batch, 8),)


TINY = PeerModel("tiny", make, square_loss, 4, "own")
INFERENCE = PeerCase("tiny", 3, "inference", "float32")
TRAINING = PeerCase("tiny", 4, "training", "float32")


@pytest.fixture(autouse=True)
def _no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)


def serve(
    monkeypatch: pytest.MonkeyPatch, case: PeerCase, folder: Path, peer: str, lines: str = "", **more: Any
) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    reference.make(TINY, case, folder)
    request = PeerRequest("peer", case, peer, folder=str(folder), threads=1, warm_up_s=0.01, **more)
    worker.serve(request, {"tiny": TINY}.__getitem__, answers.append)
    return answers


@pytest.mark.parametrize("case", [INFERENCE, TRAINING, PeerCase("tiny", 3, "inference", "bfloat16")], ids=str)
def test_eager_is_right_and_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: PeerCase) -> None:
    ready, first, second = serve(monkeypatch, case, tmp_path, "eager", '{"seconds": 0.001}\n{"seconds": 0}\n')
    assert ready["status"] == "pass" and ready["first_call_s"] > 0 and ready["parts"] == {}, ready
    assert ready["warm_up"]["calls"] >= 5
    assert first["median_s"] > 0 and first["cores_of_others"] >= 0 and second["calls"] == 2


@pytest.mark.parametrize("case", [INFERENCE, TRAINING], ids=str)
def test_a_mixture_is_right_and_tells_its_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: PeerCase
) -> None:
    configuration = {"backends": ["eager"], "cache": {"dir": str(tmp_path / "cache")}}
    (ready,) = serve(monkeypatch, case, tmp_path, "only-eager", configuration=configuration)
    assert ready["status"] == "pass", ready
    parts = ready["parts"]
    assert set(parts["backends"]) == {"eager"} and parts["regions_without_time"] == 0
    assert parts["profile"][0]["measured_s"] > 0 and parts["measured_s"] >= parts["profile"][0]["measured_s"]
    assert len(parts["placement"]) == 16 and parts["chosen"] == [""] * parts["graphs"]


def test_guards_are_skipped_once_a_model_is_warm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stances: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.compiler, "set_stance", lambda name, **settings: stances.append(settings))
    configuration = {"backends": ["eager"], "cache": {"dir": str(tmp_path / "cache")}}
    (ready,) = serve(monkeypatch, INFERENCE, tmp_path, "only-eager", configuration=configuration)
    assert ready["status"] == "pass" and stances == []
    ready, _ = serve(
        monkeypatch, INFERENCE, tmp_path, "only-eager", '{"seconds": 0}\n',
        configuration=configuration, guards="skipped",
    )  # fmt: skip
    assert ready["status"] == "pass" and stances == [{"skip_guard_eval_unsafe": True}]


def test_openvino_and_onnxruntime_take_the_whole_model(tmp_path: Path) -> None:
    for case in (INFERENCE, PeerCase("tiny", 3, "inference", "bfloat16")):
        reference.make(TINY, case, tmp_path)
        module, inputs = reference.load(TINY, case)
        for peer in ("openvino", "onnxruntime"):
            if (peer, case.dtype) == ("onnxruntime", "bfloat16"):
                continue
            executor = executors.inference(peer, None, module, inputs, 1)
            found = executor.results(executor.run())
            assert reference.mismatches(found, reference.read(tmp_path), case) == []
            found["output 0"] += 1
            assert reference.mismatches(found, reference.read(tmp_path), case)


def test_a_wrong_result_is_found_at_once_and_when_warm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest = executors.inference

    def wrong_from(call: int) -> Any:
        def build(*arguments: Any) -> executors.Executor:
            peer, *rest = arguments
            executor, calls = honest("eager", *rest), itertools.count()
            if peer == "eager":  # the reference's
                return executor
            return executors.Executor(
                lambda: executor.run() + (1.0 if next(calls) >= call else 0.0), executor.results, executor.report
            )

        return build

    monkeypatch.setattr(executors, "inference", wrong_from(0))
    assert serve(monkeypatch, INFERENCE, tmp_path, "x")[0]["detail"].startswith("['output 0']: root mean square error")
    monkeypatch.setattr(executors, "inference", wrong_from(1))
    (late,) = serve(monkeypatch, INFERENCE, tmp_path, "x")
    assert late["status"] == "wrong" and late["detail"].startswith("when warm: ['output 0']")


def test_wrong_gradients_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest = executors.training

    def build(*arguments: Any) -> executors.Executor:
        executor = honest(*arguments)

        def results(value: Any) -> dict[str, torch.Tensor]:
            found = executor.results(value)
            return {name: item + 1 if name == "gradient of 0.weight" else item for name, item in found.items()}

        return executors.Executor(executor.run, results, executor.report)

    reference.make(TINY, TRAINING, tmp_path)
    module, inputs = reference.load(TINY, TRAINING)
    executor = build("eager", None, module, inputs, TINY.loss)
    (mismatch,) = reference.mismatches(executor.results(executor.run()), reference.read(tmp_path), TRAINING)
    assert "gradient of 0.weight" in mismatch
    assert {"buffer 1.running_mean", "loss"} <= set(reference.read(tmp_path)["eager"])


def test_a_missing_output_is_a_mismatch(tmp_path: Path) -> None:
    reference.make(TINY, INFERENCE, tmp_path)
    assert "output 0" in reference.mismatches({}, reference.read(tmp_path), INFERENCE)[0]


def test_a_model_that_is_built_differently_is_no_peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reference.make(TINY, INFERENCE, tmp_path)
    monkeypatch.setattr(reference, "digest", lambda module, inputs: (1.0, 1.0))
    request = PeerRequest("peer", INFERENCE, "eager", folder=str(tmp_path))
    with pytest.raises(ValueError, match="not built alike"):
        worker.serve(request, {"tiny": TINY}.__getitem__, lambda answer: None)


def test_work_is_counted() -> None:
    module, inputs = reference.load(TINY, INFERENCE)
    work = reference.count_work(TINY, INFERENCE, module, inputs)
    assert work.flops == 2 * 3 * (8 * 16 + 16 * 4)
    weights = sum(value.numel() * value.element_size() for value in (*module.parameters(), *module.buffers()))
    assert work.bytes == weights + 4 * 3 * (8 + 4)
    module, inputs = reference.load(TINY, TRAINING)
    step = reference.count_work(TINY, TRAINING, module, inputs)
    assert step.flops == 2 * 4 * (2 * 8 * 16 + 3 * 16 * 4), "no gradient is needed for the input"
    assert step.bytes == 6 * weights + 4 * 4 * 8


def test_warm_is_when_calls_get_no_faster() -> None:
    now = [0.0]
    durations = itertools.chain(itertools.repeat(1.0, 5), itertools.repeat(0.5, 5), itertools.repeat(0.499))

    def call() -> None:
        now[0] += next(durations)

    assert worker.warm_up(call, 100.0, lambda: now[0]) == (15, True)
    falling = itertools.accumulate(itertools.repeat(0.9), lambda duration, factor: duration * factor)

    def faster_and_faster() -> None:
        now[0] += next(falling)

    calls, steady = worker.warm_up(faster_and_faster, 5.0, lambda: now[0])
    assert (calls % 5, steady) == (0, False)


def test_load_of_others_leaves_out_our_own() -> None:
    before, after = machine.Usage(0.0, 100.0, 10.0), machine.Usage(2.0, 104.0, 13.0)
    assert before.cores_of_others(after) == 0.5
    assert before.cores_of_others(machine.Usage(2.0, 101.0, 13.0)) == 0.0


@pytest.mark.nightly  # a model at true size
def test_next_token_loss_is_the_models_own() -> None:
    enable_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=16)).eval()
    ids = torch.randint(0, 32, (2, 8))
    output = model(input_ids=ids, labels=ids)
    torch.testing.assert_close(next_token_loss(output.logits, (ids,)), output.loss)
