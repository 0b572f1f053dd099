"""What inductor has for torch's operators, shipped for the release of torch that the project is developed with.

Place: below ``handling``. Output: answers by operator; none for other releases of torch, or where settings choose other
decompositions. ``python -m mixbackend.backends.inductor.known_answers`` writes ``known_answers.tsv`` anew for the torch
that is here: the release first, then a line for each answer with all operators that have it.
Invariants: a test holds the file against inductor. Left out are operators that no captured graph has: those that write
into inputs or into results that they are given.
"""

from __future__ import annotations

from pathlib import Path

import torch

from mixbackend.contracts.torch_compat import inductor_decomposes_as_usual, inductor_handling, pure_operators

FILE = Path(__file__).with_suffix(".tsv")


def known_answers() -> dict[str, str]:
    """Answers by operator, empty where the file is not about this torch."""
    release, *lines = FILE.read_text(encoding="utf-8").splitlines()
    if release != _release() or not inductor_decomposes_as_usual():
        return {}
    parts = (line.split("\t") for line in lines)
    return {f"aten.{name}": answer for answer, *names in parts for name in names}


def text_of_answers() -> str:
    """The file for this torch; imports all of inductor."""
    answers: dict[str, list[str]] = {}
    for operator in pure_operators():
        name = str(operator).removeprefix("aten.")
        answers.setdefault(inductor_handling(operator), []).append(name)
    lines = ["\t".join([answer, *sorted(names)]) for answer, names in sorted(answers.items())]
    return "\n".join([_release(), *lines]) + "\n"


def _release() -> str:
    """Builds for processors and for GPUs are of one commit."""
    return str(torch.version.git_version)


if __name__ == "__main__":
    FILE.write_text(text_of_answers(), encoding="utf-8")
