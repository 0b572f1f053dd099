"""Whatever is claimed of torch's operator samples is right: types, strides, empty tensors, gradients.

A few samples of every operator run with the suite; all of them, of every type, with ``MIXBACKEND_NIGHTLY=1`` (``pytest
-s`` prints what was reached, and which claimed ops no sample reaches). Hours of work can be shared:
``MIXBACKEND_SHARD=2/8`` takes the second eighth of the operators.
"""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from op_samples import functions_of, operators, variants

from mixbackend.backends.codegen.lower.table import RULES

from .conftest import DTYPES, Executor, Tally, by_backend, by_stages, run_sample

NIGHTLY = os.environ.get("MIXBACKEND_NIGHTLY") == "1"
_PARTS = 10
"""Of the operators in float32, each a test, so that several workers can share them."""

_SHARD, _SHARDS = map(int, os.environ.get("MIXBACKEND_SHARD", "1/1").split("/"))


def _run(
    dtype: torch.dtype, executor: Executor, every: int, *, samples: int | None, plain: bool, first: int = 0
) -> Tally:
    """Run the samples of every so-manieth operator, beginning with the one at ``first``.

    Args:
        samples: of each operator; ``None`` for all.
        plain: leave out gaps in memory and empty tensors.
    """
    tally = Tally()
    for info in operators(dtype)[first * _SHARDS + _SHARD - 1 :: every * _SHARDS]:
        torch.manual_seed(0)
        for number, sample in enumerate(itertools.islice(info.sample_inputs("cpu", dtype), samples)):
            functions, tensors = functions_of(info, sample)
            kinds = itertools.islice(variants(tensors), 1 if plain else None)
            for (variant, actual), function in itertools.product(kinds, functions):
                if variant != "plain" and function is not functions[0] and not NIGHTLY:
                    continue
                name = f"{info.full_name} #{number} {variant} {function.__name__}"
                run_sample(function, actual, executor, tally, name)
    return tally


def _report(what: str, tally: Tally) -> None:
    unreached = [name for name in RULES.names() if name not in tally.ops]
    print(f"\n{what}: {tally.samples} samples, {len(tally.ops)} ops; not reached: {' '.join(unreached)}")
    assert not tally.wrong, f"{len(tally.wrong)} of {tally.samples}:\n" + "\n".join(tally.wrong)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("dtype", "part"), [(dtype, part) for dtype in DTYPES for part in range(_PARTS if dtype == torch.float32 else 1)]
)
def test_stages_mean_what_eager_does(dtype, part):
    if dtype == torch.float32:
        tally = _run(dtype, by_stages, _PARTS, samples=None if NIGHTLY else 1, plain=False, first=part)
    elif NIGHTLY:
        tally = _run(dtype, by_stages, 1, samples=None, plain=False)
    else:
        tally = _run(dtype, by_stages, 4, samples=1, plain=True)
    _report(f"stages {dtype}", tally)
    assert tally.samples >= 40 // _SHARDS


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled_code_does_what_eager_does(dtype):
    every = 1 if NIGHTLY else 16 if dtype == torch.float32 else 64
    tally = _run(dtype, by_backend, every, samples=None if NIGHTLY else 1, plain=not NIGHTLY)
    _report(f"compiled {dtype}", tally)
    assert tally.samples >= 1
