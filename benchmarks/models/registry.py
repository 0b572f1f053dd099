"""The model suite: 193 scaled-down instances of the models behind PyTorch 2's announced set.

``models()`` lists them; ``find(name)`` gives one, including ``sentence-encoder``, the pretrained model of the demo,
which is not counted in the suite.
"""

from __future__ import annotations

import difflib
from functools import cache

from mixbackend.benchmarks.models import huggingface, sentence_encoder, timm, torchbench
from mixbackend.benchmarks.models.entry import Entry


@cache
def models() -> tuple[Entry, ...]:
    """All entries of the suite, family by family, in a fixed order. Imports no model library."""
    return (*huggingface.entries(), *timm.entries(), *torchbench.entries())


def find(name: str) -> Entry:
    """The entry called ``name``.

    Raises:
        KeyError: no such entry; the message names the nearest ones.
    """
    known = {entry.name: entry for entry in (*models(), sentence_encoder.entry())}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    raise KeyError(f"no model {name!r} in the suite of {len(known)}{hint}")
