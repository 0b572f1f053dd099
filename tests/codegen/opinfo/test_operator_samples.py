"""Whatever is claimed of torch's operator samples is right: types, strides, empty tensors, gradients.

A few samples of every operator run with the suite; all of them with ``MIXBACKEND_NIGHTLY=1`` (``pytest -s`` prints what
was reached, and which claimed ops no sample reaches).
"""

from __future__ import annotations

import itertools
import os

import pytest
import torch

from mixbackend.backends.codegen.lower.table import RULES

from .conftest import DTYPES, Tally, by_stages, functions_of, operators, run_sample, variants

NIGHTLY = os.environ.get("MIXBACKEND_NIGHTLY") == "1"
_QUICK = {torch.float32: 2}
_EXPECTED_SAMPLES = {torch.float32: 500, torch.float64: 150, torch.int64: 100, torch.bool: 80}


def _run(dtype: torch.dtype, limit: int | None) -> Tally:
    tally = Tally()
    for info in operators(dtype):
        torch.manual_seed(0)
        for number, sample in enumerate(itertools.islice(info.sample_inputs("cpu", dtype), limit)):
            functions, tensors = functions_of(info, sample)
            for (variant, actual), function in itertools.product(variants(tensors), functions):
                name = f"{info.full_name} #{number} {variant} {function.__name__}"
                run_sample(function, actual, by_stages, tally, name)
    return tally


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_claims_hold_for_torchs_samples(dtype):
    tally = _run(dtype, None if NIGHTLY else _QUICK.get(dtype, 1))
    unreached = [name for name in RULES.names() if name not in tally.ops]
    print(f"\n{dtype}: {tally.samples} samples, {len(tally.ops)} ops; not reached: {' '.join(unreached)}")
    assert not tally.wrong, f"{len(tally.wrong)} of {tally.samples}:\n" + "\n".join(tally.wrong)
    assert tally.samples >= _EXPECTED_SAMPLES.get(dtype, 100)
