"""Upstream's accuracy rule: what passes, and above all what must not."""

from __future__ import annotations

import pytest
import torch

from mixbackend.benchmarks.one_model.accuracy import (
    Rule,
    cosine,
    error_factor,
    judge,
    root_mean_square_error,
    rule_for,
)

STRICT = Rule(1e-4)


def exact_values(count: int = 4000) -> torch.Tensor:
    return torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 100


def off_by(error: float, exact: torch.Tensor) -> torch.Tensor:
    """Values whose root mean square error against ``exact`` is ``error``, alternating in sign."""
    signs = torch.ones_like(exact)
    signs[1::2] = -1
    return (exact + error * signs).float()


def test_equal_results_pass() -> None:
    values = exact_values()
    result = judge([values.float()], [values.float()], [values.float()], [values], STRICT)
    assert result.verdict == "pass"
    assert result.mismatches == ()
    assert not result.by_cosine


def test_tolerance_is_relative_and_absolute() -> None:
    reference = torch.tensor([0.0, 1000.0])
    near = torch.tensor([0.9e-4, 1000.05])
    far = torch.tensor([3e-4, 1000.0])
    assert judge(reference, reference, near, None, STRICT).verdict == "pass"
    wide = reference.double()
    assert judge(reference, reference, far, wide, STRICT).verdict == "fail_accuracy"


@pytest.mark.parametrize(("times", "verdict"), [(1.9, "pass"), (2.2, "fail_accuracy")])
def test_twice_the_error_of_eager_is_allowed(times: float, verdict: str) -> None:
    exact = exact_values()
    eager = off_by(0.1, exact)
    assert judge(eager, eager, off_by(0.1 * times, exact), exact, STRICT).verdict == verdict


@pytest.mark.parametrize(("times", "verdict"), [(2.9, "pass"), (3.2, "fail_accuracy")])
def test_small_tensors_are_allowed_three_times(times: float, verdict: str) -> None:
    exact = exact_values(500)
    eager = off_by(0.1, exact)
    assert judge(eager, eager, off_by(0.1 * times, exact), exact, STRICT).verdict == verdict


def test_factor_by_size_shape_dtype_and_tolerance() -> None:
    large = torch.zeros(2000)
    assert error_factor(large, large.double(), STRICT) == 2.0
    assert error_factor(large.half(), large.double(), STRICT) == 3.0
    assert error_factor(large, large.double(), Rule(2e-2)) == 3.0
    kernel = torch.zeros(50, 40, 1, 1)
    assert error_factor(kernel, kernel.double(), STRICT) == 3.0
    small = torch.zeros(10)
    assert error_factor(small, small.double(), Rule(1e-4, forgive_small=True)) == 10.0
    middle = torch.zeros(400)
    assert error_factor(middle, middle.double(), Rule(1e-4, forgive_small=True)) == 8.0


def test_integers_have_no_float64_fallback() -> None:
    reference = torch.tensor([1, 2, 3])
    result = judge(reference, reference, torch.tensor([1, 2, 4]), reference, STRICT)
    assert result.verdict == "fail_accuracy"
    assert "largest difference 1.000e+00" in str(result.mismatches[0])


def test_one_flipped_boolean_fails() -> None:
    reference = torch.zeros(1000, dtype=torch.bool)
    flipped = reference.clone()
    flipped[7] = True
    assert judge(reference, reference, flipped, reference, Rule(1e-1)).verdict == "fail_accuracy"


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (torch.zeros(3, dtype=torch.float64), "dtype torch.float32 became torch.float64"),
        (torch.zeros(3, 1), "shape (3,) became (3, 1)"),
        (None, "tensor became NoneType"),
        (torch.full((3,), torch.nan), "root mean square error nan"),
    ],
)
def test_other_kinds_of_results_fail(result: object, reason: str) -> None:
    reference = torch.zeros(3)
    judgement = judge(reference, reference, result, reference.double(), STRICT)
    assert judgement.verdict == "fail_accuracy"
    assert reason in str(judgement.mismatches[0])


def test_every_mismatch_is_named_by_its_path() -> None:
    reference = ({"a.grad": torch.zeros(3), "b.grad": torch.zeros(3)}, torch.zeros(()))
    compiled = ({"a.grad": torch.zeros(3), "b.grad": torch.ones(3)}, torch.ones(()))
    paths = [mismatch.path for mismatch in judge(reference, reference, compiled, None, STRICT).mismatches]
    assert paths == ["[0]['b.grad']", "[1]"]


def test_a_missing_gradient_fails() -> None:
    reference = {"a.grad": torch.zeros(3), "b.grad": torch.zeros(3)}
    judgement = judge(reference, reference, {"a.grad": torch.zeros(3)}, None, STRICT)
    assert judgement.verdict == "fail_accuracy"
    assert "b.grad" in str(judgement.mismatches[0])


def test_numbers_and_words_must_agree() -> None:
    assert judge([1, "x", 0.5], [1, "x", 0.5], [1, "x", 0.5], None, STRICT).verdict == "pass"
    assert judge([1], [1], [2], None, STRICT).verdict == "fail_accuracy"
    assert judge([0.5], [0.5], [0.6], None, STRICT).verdict == "fail_accuracy"


def test_eager_must_agree_with_itself_exactly() -> None:
    first = torch.ones(3)
    second = first + 1e-7
    judgement = judge(first, second, first, first.double(), Rule(1.0))
    assert judgement.verdict == "eager_two_runs_differ"


def test_cosine_stands_in_where_float64_cannot_run() -> None:
    reference = exact_values().float()
    turned = reference.clone()
    turned[:30] *= -1
    close = judge(reference, reference, reference * 1.01, None, STRICT)
    assert close.verdict == "pass"
    assert close.by_cosine
    assert cosine(reference, reference) == pytest.approx(1.0)
    assert judge(reference, reference, -reference, None, STRICT).verdict == "fail_accuracy"


@pytest.mark.parametrize(("loss", "verdict"), [(2.01, "pass"), (2.1, "fail_accuracy"), (-2.0, "fail_accuracy")])
def test_a_single_number_has_no_direction(loss: float, verdict: str) -> None:
    reference = torch.tensor(2.0)
    assert judge(reference, reference, torch.tensor(loss), None, STRICT).verdict == verdict


def test_error_is_the_root_of_the_mean_square() -> None:
    exact = torch.zeros(4, dtype=torch.float64)
    assert root_mean_square_error(exact, torch.tensor([2.0, 0.0, 0.0, 0.0])) == 1.0


def test_tolerances_by_family() -> None:
    assert rule_for("hf", "CamemBert", "inference").tolerance == 1e-3
    assert rule_for("hf", "CamemBert", "training").tolerance == 1e-2
    assert rule_for("timm", "dla102", "training").tolerance == 1e-2
    assert rule_for("timm", "deit_base_distilled_patch16_224", "training").tolerance == 8e-2
    assert rule_for("timm", "deit_base_distilled_patch16_224", "inference").tolerance == 1e-3
    assert rule_for("torchbench", "dcgan", "training").tolerance == 1e-4
    assert rule_for("torchbench", "yolov3", "training").forgive_small
    with pytest.raises(KeyError):
        rule_for("unknown", "x", "training")
