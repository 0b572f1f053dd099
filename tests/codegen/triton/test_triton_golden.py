"""The text of a few Triton kernels, to be read in reviews; ``UPDATE_GOLDEN=1`` writes it anew.

Each of them is interpreted and compiled among all patterns.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from triton_programs import printed

FOLDER = Path(__file__).parent / "golden"
NAMES = (
    "gelu_bias_residual transposed_copy layer_norm softmax cross_entropy column_sum cumulative_sum index_add "
    "symbolic_points"
).split()


@pytest.mark.parametrize("name", NAMES)
def test_text_of_triton_kernels(name: str) -> None:
    made = printed(name, torch.float32)
    text, file = "\n\n".join(item.body for item in made.texts), FOLDER / f"{name}.py.txt"
    text += f"\n# blocks and arguments: {made.values}\n"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()
