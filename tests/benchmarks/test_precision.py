"""Precisions of the suite: what is cast, what runs under autocast, and what the table says of the records."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mixbackend.benchmarks.models.order import SMALL_FIRST, small_first
from mixbackend.benchmarks.models.registry import find, models
from mixbackend.benchmarks.one_model import steps
from mixbackend.benchmarks.one_model.accuracy import errors, rule_for
from mixbackend.benchmarks.one_model.precision import cast
from mixbackend.benchmarks.one_model.protocol import MODULE, Request
from mixbackend.benchmarks.precision_table import table
from mixbackend.benchmarks.runner import SuiteOptions, cases
from mixbackend.benchmarks.staff import Staff
from mixbackend.benchmarks.suite import main


def test_weights_and_inputs_are_cast_and_ids_are_not() -> None:
    module, args, kwargs = cast((torch.nn.Linear(2, 2), (torch.ones(2), torch.ones(2).long()), {"x": [torch.ones(1)]}),
                                "float16")  # fmt: skip
    assert module.weight.dtype == args[0].dtype == kwargs["x"][0].dtype == torch.float16
    assert args[1].dtype == torch.int64
    kept = cast((torch.nn.Linear(2, 2), (torch.ones(2),), {}), "amp")
    assert kept[0].weight.dtype == kept[1][0].dtype == torch.float32


def test_autocast_holds_for_the_forward_and_gradients_stay_float32() -> None:
    entry = find("nvidia_deeprecommender")
    loaded = steps.load(entry, "training")
    plain, mixed = (
        steps.run(entry, "training", loaded, steps.step_of(entry, "training", precision))[-1]
        for precision in ("float32", "amp")
    )
    assert (plain[0].dtype, mixed[0].dtype) == (torch.float32, torch.bfloat16)
    assert {gradient.dtype for gradient in mixed[2].values()} == {torch.float32}
    assert any(not torch.equal(plain[2][name], mixed[2][name]) for name in plain[2])


def test_the_first_and_the_last_call_are_compared() -> None:
    entry = find("lennard_jones")
    seen: list[int] = []

    def counted(module: Any, args: Any, kwargs: Any) -> torch.Tensor:
        seen.append(len(seen))
        return torch.full((1,), float(len(seen)))

    results = steps.run(entry, "inference", steps.load(entry, "inference"), counted, calls=6)
    assert [value.item() for value in results] == [1.0, 6.0]


@pytest.mark.parametrize(
    ("name", "phase", "precision", "device", "tolerance"),
    [
        ("dcgan", "inference", "float16", "cuda", 1e-3),
        ("dcgan", "inference", "bfloat16", "cuda", 1e-4),
        ("dcgan", "training", "amp", "cpu", 1e-3),
        ("dcgan", "training", "float32", "cuda", 1e-3),
        ("yolov3", "training", "float32", "cuda", 8e-2),
        ("yolov3", "training", "float32", "cpu", 1e-4),
        ("drq", "inference", "bfloat16", "cuda", 1e-2),
        ("phlippe_resnet", "inference", "bfloat16", "cuda", 1e-4),
        ("phlippe_resnet", "training", "amp", "cuda", 1e-2),
    ],
)
def test_tolerances_of_torchbench_depend_on_precision_and_device(
    name: str, phase: Any, precision: str, device: str, tolerance: float
) -> None:
    assert rule_for("torchbench", name, phase, precision, device).tolerance == tolerance
    assert rule_for("timm", "dla102", phase, precision, device) == rule_for("timm", "dla102", phase)


def test_errors_are_those_of_the_tensor_that_is_farthest_off() -> None:
    exact = {"a": torch.full((4,), 2.0, dtype=torch.float64), "b": torch.ones(4, dtype=torch.float64), "n": 1}
    eager = {"a": torch.full((4,), 2.5), "b": torch.ones(4), "n": 1}
    ours = {"a": torch.full((4,), 3.0), "b": torch.full((4,), 1.25), "n": 1}
    assert errors([eager], [ours], [exact]) == (0.5, 0.25)
    assert errors([eager], [ours], None) is None
    assert errors([eager], [{"a": None}], [exact]) is None


def test_phases_have_the_precisions_that_they_know() -> None:
    found = cases(SuiteOptions(models=("dcgan",), precisions=("float16", "bfloat16", "amp")))
    assert [(case.phase, case.precision) for case in found] == [
        ("inference", "float16"),
        ("inference", "bfloat16"),
        ("training", "amp"),
    ]


def test_the_order_by_size_has_every_model_once() -> None:
    assert sorted(SMALL_FIRST) == sorted(entry.name for entry in models())
    assert [entry.name for entry in small_first([find("hrnet_w18"), find("dcgan")])] == ["dcgan", "hrnet_w18"]


def record(model: str, status: str = "pass", precision: str = "float16", **more: Any) -> dict[str, Any]:
    return {
        "kind": "accuracy",
        "model": model,
        "phase": "inference",
        "precision": precision,
        "status": status,
        "seconds": 3.2,
        "placement": {"graphs": 1, "nodes": {"codegen": 7}, "events": {}, "event_details": []},
        **more,
    }


def test_the_table_tells_passes_errors_trouble_and_reasons() -> None:
    placement = {
        "graphs": 1,
        "nodes": {"eager": 5},
        "events": {"verify_failed": 2, "tuning": 9},
        "event_details": ["verify_failed g/r0/codegen: off by 3", "tuning g: chose"],
    }
    text = table(
        [
            record("good", "crash", detail="an older record"),
            record("good", error=0.2, eager_error=0.1),
            record("good", precision="bfloat16", placement=placement),
            record("bad", "fail_accuracy", detail="result: too\nfar", aot_eager={"status": "pass"}),
            record("empty", placement={"graphs": 0}),
            record("empty", "eager_failed", precision="bfloat16", detail="no kernel"),
            record("alone", beside_others="crash: SIGSEGV"),
        ]
    )
    lines = text.splitlines()
    assert lines[0].split() == ["model", "inference", "float16", "inference", "bfloat16"]
    assert lines[1].split() == ["good", "pass", "2.00x", "3s", "pass", "3s", "!2"]
    assert lines[2].split() == ["bad", "fail_accuracy", "3s"]
    assert lines[3].split() == ["empty", "pass", "no", "graph", "3s", "(eager_failed)", "3s"]
    assert lines[5].split() == ["passed,", "with", "graphs", "2", "1"]
    assert lines[6] == "passed everything, with graphs: 1 of 4 models"
    assert lines[7] == "graph nodes in inference float16: codegen 21"
    assert "good inference bfloat16: verify_failed g/r0/codegen: off by 3" in lines
    assert "bad inference float16: fail_accuracy: result: too far [aot_eager: pass]" in lines
    assert "alone inference float16: in a process that had served others: crash: SIGSEGV" in lines
    assert "tuning" not in text
    assert "older" not in text


def test_devices_and_modes_have_columns_of_their_own() -> None:
    head = table([record("m"), record("m", device="cuda", mode="reduce-overhead")]).splitlines()[0]
    columns = [column.strip() for column in head.split("  ") if column.strip()]
    assert columns == ["model", "inference float16", "inference float16 cuda reduce-overhead"]
    assert table([]).splitlines()[-1] == "passed everything, with graphs: 0 of 0 models"


@pytest.mark.parametrize("wrong", [["--precision", "float8"], ["--speed", "--device", "cuda"], ["--mode", "fast"]])
def test_precisions_and_modes_that_are_not_known_are_refused(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(wrong)
    assert "error" in capsys.readouterr().err


def test_one_process_checks_both_precisions_for_real() -> None:
    with Staff(MODULE, most=2, threads=1) as staff:
        half, mixed = (
            staff.ask(Request("accuracy", "lennard_jones", phase, "aot_eager", precision=precision), 120.0)
            for phase, precision in (("inference", "bfloat16"), ("training", "amp"))
        )
    assert (half["status"], mixed["status"]) == ("pass", "pass"), (half, mixed)
    assert half["eager_error"] > 1e-4
    assert half["accelerator_bytes"] == 0
