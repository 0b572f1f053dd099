"""The page of the operators of each level: ``docs/reference/op_levels.md``.

Place: beside ``op_levels``; ``python -m mixbackend.contracts.op_levels_page`` prints the page. Input: the lists, and
torch's registry for the level ``aten``. Output: Markdown.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import torch

from mixbackend.contracts.op_levels import OpLevel, families, operators_of

_HEAD = """\
# Operators of each level

Written by `python -m mixbackend.contracts.op_levels_page`; `mixbackend.contracts.operators_of(level)` gives the same
names. [The contract](backend_contract.md#10-op-levels) says what a level is.

A region of a lower level holds the operators listed here, `getitem`, which takes several results apart, arithmetic of
sizes (`aten.sym_size.int`, Python's operators on numbers), and what its backend claims whole: matched patterns, writes
into inputs and operators with subgraphs. What torch would leave over beyond the list is not lowered, and then refused.
"""

_LEVELS: dict[OpLevel, str] = {
    "prims": "Torch's prims but those that write, draw or give memory as it comes, and what torch has no prims for.",
    "core_aten": "Torch's core ATen, with `reshape` for `view`, and what torch's decompositions to it leave as it is.",
}


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(map(lower_level, _LEVELS)) + planning_level()


def lower_level(level: OpLevel) -> str:
    """The section of a lower level; the same with every torch."""
    text = f"\n## {level}\n\n{len(operators_of(level))} operators. {_LEVELS[level]}\n"
    for family, names in families(level).items():
        prims, library = ([name for name in names if name.startswith(start)] for start in ("prims.", "aten."))
        text += f"\n**{family[0].upper()}{family[1:]}**:\n" + "".join(map(_listed, filter(None, (prims, library))))
    return text


def planning_level() -> str:
    """The section of the level ``aten``, as this torch has it."""
    names = sorted(operators_of("aten"))
    count = f"{len(names)} operators of torch {torch.__version__.partition('+')[0]}"
    return (
        f"\n## aten\n\n{count}: those of its registry that write nothing and are not made of others, and `reshape`.\n"
        "Graphs of users may hold operators of other libraries besides, under their own names.\n\n" + _listed(names)
    )


def _listed(names: Iterable[str]) -> str:
    """Operators with their overloads, in lines."""
    overloads: dict[str, list[str]] = {}
    for name in sorted(names):
        operator, _, overload = name.rpartition(".")
        overloads.setdefault(operator, []).append(overload)
    words = [
        operator if which == ["default"] else f"{operator}[{','.join(which)}]" for operator, which in overloads.items()
    ]
    lines = textwrap.wrap(" ".join(words), 118, break_long_words=False, break_on_hyphens=False)
    return "```\n" + "\n".join(lines) + "\n```\n"


if __name__ == "__main__":
    print(page(), end="")
