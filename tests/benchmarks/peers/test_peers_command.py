"""``mixbackend bench peers`` from the command line, with peers that only pretend; what its models are."""

from __future__ import annotations

import functools
import json
import os
import signal
from pathlib import Path

import pytest

from mixbackend.benchmarks.commands import peers as bench_peers
from mixbackend.benchmarks.peers.catalogue import MIXTURES, configuration_of, peer_names
from mixbackend.benchmarks.peers.models import MODELS, TRAINED
from mixbackend.benchmarks.peers.suite_models import CHOICE
from mixbackend.benchmarks.peers.turns import Options


@pytest.fixture
def pretending(fake_peers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_peers, "Options", functools.partial(Options, module="fake_peers"))
    monkeypatch.setattr(bench_peers, "usable_backends", lambda: ("codegen",))


COMMAND = ("--models", "minilm", "--peers", "inductor,mixture", "--rounds", "2", "--seconds", "0.01", "--memory", "0")


@pytest.mark.usefixtures("pretending")
def test_one_json_value_and_a_file_to_resume_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "peers.jsonl"
    command = (*COMMAND, "--resume", str(file), "--json")
    assert bench_peers.main(command) == 0
    first = json.loads(capsys.readouterr().out)
    (case,) = first["cases"]
    assert (case["model"], set(case["peers"])) == ("minilm", {"inductor", "mixture"})
    assert case["limits"]["compute_s"] == 0.0005 and first["settings"]["rounds"] == 2
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["peer"] for record in records if "peer" in record] == ["inductor", "mixture"]
    assert bench_peers.main(command) == 0
    assert json.loads(capsys.readouterr().out)["cases"] == first["cases"], "nothing ran again"


@pytest.mark.usefixtures("pretending")
def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = (*COMMAND, "--phase", "inference,training", "--batch", "1,8", "--resume", str(tmp_path / "f"))
    assert bench_peers.main(command) == 0
    text = capsys.readouterr().out
    assert "inference float32: milliseconds" in text and "training float32: times faster" in text


@pytest.mark.usefixtures("pretending")
def test_asked_to_end_it_leaves_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: object, **options: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(bench_peers.runner, "run", run)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left:
        bench_peers.main((*COMMAND, "--resume", str(tmp_path / "f")))
    assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--models", "nope"), "no model is called nope"),
        (("--models", "suite:nope"), "no model is called suite:nope"),
        (("--suite", "25"), "should be a number up to 24"),
        (("--peers", "mixtur"), "no peer is called mixtur"),
        (("--batch", "0"), "numbers from 1 on"),
        (("--batch", "x"), "invalid literal"),
        (("--phase", "both"), "no phase is called both"),
        (("--dtype", "float8"), "no dtype is called float8"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        bench_peers.main(arguments)
    assert left.value.code == 2 and message in capsys.readouterr().err


def test_twelve_models_and_six_that_train() -> None:
    assert len(MODELS) == 12 and len(TRAINED) == 6 and set(TRAINED) <= set(MODELS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["mobilenetv3-large", "minilm"])
def test_models_are_built_alike_each_time(name: str) -> None:
    import torch

    from mixbackend.benchmarks.peers.reference import digest

    first, second = (MODELS[name].load(2, train=False, dtype=torch.float32) for _ in range(2))
    assert digest(*first) == digest(*second)
    with torch.no_grad():
        assert first[0](*first[1]).shape[0] == 2


def test_last_places_are_no_other_model_and_another_seed_is_one() -> None:
    import torch

    from mixbackend.benchmarks.peers.reference import digest, is_alike

    def linear(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Linear(512, 512)

    inputs = (torch.zeros(3),)
    first, near = linear(0), linear(0)
    with torch.no_grad():
        near.weight[::7] *= 1 + 2.0**-23
    assert digest(first, inputs) != digest(near, inputs)
    assert is_alike(digest(first, inputs), digest(near, inputs))
    assert not is_alike(digest(first, inputs), digest(linear(1), inputs))
    assert not is_alike(digest(first, inputs), digest(first, (torch.ones(3),)))


def test_peers_by_what_the_machine_has() -> None:
    names = peer_names(("codegen", "openvino"))
    assert {"mixture", "mixture-without-openvino", "only-codegen", "only-openvino"} <= set(names)
    assert "mixture-without-openvino" not in peer_names(("codegen",)), "it would be the mixture"
    both = ("codegen", "openvino")
    assert configuration_of("openvino", ()) is None
    told = {peer: dict(configuration_of(peer, both) or {}) for peer in names if peer in MIXTURES or "only-" in peer}
    folders = [configuration.pop("cache")["dir"] for configuration in told.values()]
    assert len(set(folders)) == len(told) == 6, "no peer finds what another remembered"
    assert told["mixture-without-openvino"] == {"backends": ["codegen", "eager"]}
    assert told["only-codegen"] == {"backends": ["codegen", "eager"]} and told["mixture"] == {}
    assert told["tuned"] == {"search": {"mode": "measure"}}


def test_groups_of_peers_and_models() -> None:
    def chosen(*arguments: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return bench_peers._models(bench_peers._parser().parse_args(arguments))

    assert bench_peers._peers("placement", ("codegen", "onednn")) == (
        "eager", "only-codegen", "only-onednn", "mixture", "tuned",
    )  # fmt: skip
    assert chosen() == (tuple(MODELS), TRAINED)
    assert chosen("--suite", "24") == (
        tuple(f"suite:{name}" for name in CHOICE),
        tuple(f"suite:{n}" for n in CHOICE[:8]),
    )
    inferred, trained = chosen("--models", "true-size,suite:vgg16", "--suite", "2")
    assert inferred == (*MODELS, "suite:vgg16", "suite:resnet18", "suite:DistilBertForMaskedLM")
    assert trained == (*TRAINED, "suite:vgg16", "suite:resnet18", "suite:DistilBertForMaskedLM")


@pytest.mark.usefixtures("pretending")
def test_what_no_time_is_left_for_is_told_and_run_the_next_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (*COMMAND[:1], "minilm,suite:resnet18", *COMMAND[2:], "--resume", str(tmp_path / "f"))
    assert bench_peers.main((*command, "--minutes", "1e-9", "--json")) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["cases"] == []
    assert first["settings"]["left"] == ["minilm inference float32 batch 1", "suite:resnet18 inference float32"]
    assert bench_peers.main((*command, "--minutes", "1e-9")) == 0
    assert "run the same command again: minilm" in capsys.readouterr().out
    assert bench_peers.main((*command, "--json")) == 0
    second = json.loads(capsys.readouterr().out)
    assert [(case["model"], case["batch"]) for case in second["cases"]] == [("minilm", 1), ("suite:resnet18", 0)]
    assert second["settings"]["left"] == []
