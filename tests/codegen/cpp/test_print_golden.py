"""The text of a few kernels, to be read in reviews; ``UPDATE_GOLDEN=1`` writes it anew.

Each of them is compiled and run among all samples.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sample_kernels import SAMPLES

from mixbackend.backends.codegen.targets.cpp.printer import print_kernel

FOLDER = Path(__file__).parent / "golden"
NAMES = ("flat_gelu", "row_sum", "softmax", "transposed", "windows", "cumsum_rows", "cumsum_columns")


@pytest.mark.parametrize("name", NAMES)
def test_text_of_kernel(name: str) -> None:
    text, file = print_kernel(SAMPLES[name], name), FOLDER / f"{name}.cpp"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()
