"""The closed lists of operators: what torch has, each once, and on the page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mixbackend.contracts import LEVELS, operators_of
from mixbackend.contracts.op_levels import families
from mixbackend.contracts.op_levels_page import lower_level, page, planning_level
from mixbackend.contracts.torch_compat import (
    decomposition_table,
    kernels_are_composite,
    operator_by_name,
    pure_operators,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "op_levels.md"
LOWER = LEVELS[1:]

TAKEN_APART = {
    "aten.slice.Tensor": "torch has only positions in memory for it",
    "aten.complex.default": "torch writes both parts into memory as it comes",
    "aten.polar.default": "the same",
    "aten.adaptive_max_pool2d.default": "only where windows are of one size",
}
"""Operators that are kept at the level of prims although torch has a decomposition."""

NO_LOWER_LEVEL = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
)


@pytest.mark.parametrize("level", LOWER)
def test_torch_has_every_operator_of_a_list_and_none_writes(level):
    unknown = [name for name in operators_of(level) if operator_by_name(name) is None]
    assert unknown == []
    assert [name for name in operators_of(level) if operator_by_name(name)._schema.is_mutable] == []


@pytest.mark.parametrize("level", LOWER)
def test_every_operator_is_in_one_family(level):
    names = [name for family in families(level).values() for name in family]
    assert len(names) == len(set(names)) == len(operators_of(level))


def test_the_level_aten_has_no_families():
    with pytest.raises(ValueError, match="not a lower level"):
        families("aten")


def test_what_is_kept_at_prims_is_what_torch_does_not_take_apart():
    table = decomposition_table("prims")
    assert {name for name in operators_of("prims") if operator_by_name(name) in table} == set(TAKEN_APART)


def test_core_aten_has_all_that_torch_calls_core():
    core = {
        str(operator)
        for operator in pure_operators()
        if torch.Tag.core in operator.tags and not any(tag in operator.tags for tag in NO_LOWER_LEVEL)
    }
    left_out = {name for name in core if name.startswith(("aten.sym_", "aten.empty", "aten.as_strided"))}
    assert core - left_out - operators_of("core_aten") == {"aten.view.default"}
    assert "aten.reshape.default" in operators_of("core_aten")


def test_the_level_aten_is_what_a_captured_graph_may_hold():
    assert operators_of("core_aten") - operators_of("aten") <= {
        name for name in operators_of("core_aten") if kernels_are_composite(operator_by_name(name))
    }


def test_the_page_is_what_the_code_says():
    text = PAGE.read_text(encoding="utf-8")
    for level in LOWER:
        assert lower_level(level) in text
    if f"torch {torch.__version__.partition('+')[0]}:" in planning_level() and planning_level() in page():
        written_for = text.partition(" operators of torch ")[2].partition(":")[0]
        if written_for == torch.__version__.partition("+")[0]:
            assert text == page(), "write it anew: python -m mixbackend.contracts.op_levels_page"
