"""Our own samples and torch's: the same in every process, traced and cut; what they find of our backends' patterns."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from mixbackend import registry
from mixbackend.certify import own_samples, torch_samples
from mixbackend.certify.cases import Case, cases_of
from mixbackend.certify.samples import checked_samples
from mixbackend.certify.units import DTYPES, Extent, following, units_of
from mixbackend.contracts.asked import AskedBackend

NEEDS_TORCHS = pytest.mark.skipif(bool(torch_samples.missing()), reason=torch_samples.missing())


def backend(name: str) -> AskedBackend:
    return next(item for item in registry.resolve((name,)) if item.name == name)


def own_cases(name: str, most: int | None = None) -> list[Case]:
    return [case for sample in own_samples.all_samples()[:most] for case in cases_of(sample, backend(name))]


def test_our_samples_have_names_and_values_of_their_own() -> None:
    before = [sample.inputs for sample in checked_samples(own_samples.all_samples())]
    own_samples.all_samples.cache_clear()
    after = [sample.inputs for sample in own_samples.all_samples()]
    pairs = zip(before, after, strict=True)
    assert all(torch.equal(one, other) for left, right in pairs for one, other in zip(left, right, strict=True))


def test_every_sample_is_cut_into_regions_that_eager_computes() -> None:
    cases = own_cases("eager")
    assert len({case.claim.op for case in cases}) > 80 and all(case.refusal is None for case in cases)
    for case in cases[::9]:
        assert case.region.outputs or case.region.written
        assert len(case.inputs) == len(case.region.inputs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "least"), [("onednn", 34), ("codegen", 28)])
def test_most_patterns_of_ours_have_a_sample(name: str, least: int) -> None:
    found = {case.claim.op for case in own_cases(name) if case.claim.op.startswith("pattern ")}
    assert len(found) >= least, sorted(found)


def test_digests_tell_questions_apart() -> None:
    def digests() -> list[str]:
        return [case.digest for case in own_cases("eager", 15)]

    once = digests()
    assert once == digests() and len(set(once)) > 20


@NEEDS_TORCHS
def test_torchs_samples_are_seeded_and_seed_nothing() -> None:
    def drawn() -> tuple[object, ...]:
        (sample, *_) = torch_samples.samples("nn.functional.huber_loss", "float32", False, "inference", 1)
        return sample.function(*sample.inputs)

    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()
    once = drawn()
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
    assert np.array_equal(np.random.get_state()[1], states[2])
    random.random()
    assert all(torch.equal(one, other) for one, other in zip(once, drawn(), strict=True))


@NEEDS_TORCHS
def test_further_types_are_asked_of_what_is_known() -> None:
    extent = Extent(ops=("sigmoid",), sources=("torch",))
    first = units_of(extent)
    assert {unit.dtype for unit in first} == {"float32"}
    assert following(extent, first, set(), set()) == []
    known = following(extent, first, set(), set(first))
    assert {unit.dtype for unit in known} <= set(DTYPES) - {"float32"} and not any(unit.dynamic for unit in known)
    claimed = following(extent, first, set(first), set())
    assert {(unit.dynamic, unit.phase) for unit in claimed} == {(True, "inference"), (False, "backward")}
    assert following(extent, claimed, set(claimed), set(claimed)) == []
    quick = Extent(quick=True, ops=("sigmoid",), sources=("torch",))
    begun = units_of(quick)
    assert all(unit.dynamic for unit in begun)
    assert [unit.dynamic for unit in following(quick, begun, set(), set())] == [False] * len(begun)


@pytest.mark.sampled(2)
@NEEDS_TORCHS
@pytest.mark.parametrize("name", ["sigmoid", "nn.functional.layer_norm", "cumsum"])
@pytest.mark.parametrize("phase", ["inference", "backward"])
def test_entries_of_torchs_database_are_traced(name: str, phase: str) -> None:
    samples = torch_samples.samples(name, "float32", phase == "inference", phase, 2)
    assert samples and all(cases_of(sample, backend("eager")) for sample in samples)
