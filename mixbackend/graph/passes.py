"""Graph passes: the rewrites of graphs, by name, in the order in which they run.

Place: ``capture`` runs ``TRACED`` on Dynamo's graph and ``joint_passes`` on a joint graph; ``normalize`` runs
``CAPTURED`` on every captured graph; ``constants.taken_out`` runs ``constant_passes`` between two runs of those.
Input and output: an fx graph, changed in place. Each pass is a file that holds a predicate, ``applies``, and a rewrite.
Invariants: a predicate is cheap and reads the graph alone; where it is false, the rewrite would change nothing. Equal
graphs are rewritten alike, whatever code runs the passes: a decision about a graph holds for its copies.
Non-goals: what depends on backends or costs (layouts, what a backward computes again) is decided in ``plan``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch.fx

from mixbackend.graph import (
    attention_masks,
    body_numbers,
    column_scales,
    cse,
    discontinuities,
    lifted_scalars,
    norm_dimensions,
    packed_weights,
    random_states,
    redundant_as_strided,
    result_types,
    unpacked_codes,
    updates_in_place,
    views,
    views_as_reshapes,
)
from mixbackend.graph.constants import factories, fold, known_values


@dataclass(frozen=True)
class GraphPass:
    """One rewrite of a graph.

    Attributes:
        name: of its file.
        applies: whether there is something in a graph that it is about.
        rewrite: changes a graph in place; returns how many places it changed.
        optional: whether results are right without it; the first to be left out when a fault is looked for.
    """

    name: str
    applies: Callable[[torch.fx.GraphModule], bool]
    rewrite: Callable[[torch.fx.GraphModule], int]
    optional: bool = True


_NORM_DIMENSIONS = GraphPass(
    "norm_dimensions", norm_dimensions.applies, norm_dimensions.count_from_the_front, optional=False
)
_RESULT_TYPES = GraphPass("result_types", result_types.applies, result_types.state_result_types, optional=False)
_NUMBERS = (
    GraphPass("known_values", known_values.applies, known_values.write_known_values),
    GraphPass("lifted_scalars", lifted_scalars.applies, lifted_scalars.write_lifted_numbers),
)
"""In joint graphs, too: a backward reads no number of the processor that its forward saved."""

TRACED = (GraphPass("attention_masks", attention_masks.applies, attention_masks.simplify_attention_masks),)
"""Passes for Dynamo's graph."""

CAPTURED = (
    _NORM_DIMENSIONS,
    _RESULT_TYPES,
    GraphPass("body_numbers", body_numbers.applies, body_numbers.read_off_inputs, optional=False),
    GraphPass("random_states", random_states.applies, random_states.unwrap_what_draws_nothing),
    GraphPass("views_as_reshapes", views_as_reshapes.applies, views_as_reshapes.reshape_views, optional=False),
    GraphPass("packed_weights", packed_weights.applies, packed_weights.write_products),
    GraphPass("unpacked_codes", unpacked_codes.applies, unpacked_codes.write_expressions),
    GraphPass("column_scales", column_scales.applies, column_scales.scale_results),
    GraphPass("redundant_as_strided", redundant_as_strided.applies, redundant_as_strided.reshape_restated_strides),
    *_NUMBERS,
    GraphPass("cse", cse.applies, cse.merge_common_ops),
    GraphPass("updates_in_place", updates_in_place.applies, updates_in_place.update_in_place),
)
"""Passes for every captured graph."""


def joint_passes(forward_outputs: int) -> tuple[GraphPass, ...]:
    """Passes for a joint graph, before it is split: what the forward saves enters the backward as it is stated then.

    Args:
        forward_outputs: how many of its outputs the forward returns.
    """
    save = partial(discontinuities.save_discontinuities, forward_outputs=forward_outputs)
    return (
        _NORM_DIMENSIONS,
        _RESULT_TYPES,
        *_NUMBERS,
        GraphPass("views", views.applies, views.read_through_detach),
        GraphPass("discontinuities", discontinuities.applies, save, optional=False),
    )


def constant_passes(constants: frozenset[str]) -> tuple[GraphPass, ...]:
    """Passes for an inference graph, before what depends on constants alone is split off.

    Args:
        constants: names of nodes with constant values.
    """
    return (
        GraphPass("fold", fold.applies, partial(fold.fold_batch_norms, constants=constants)),
        GraphPass("factories", factories.applies, factories.free_factories),
    )


RunPass = Callable[[GraphPass, torch.fx.GraphModule], int]
"""Runs one pass on a graph, and says how many places it changed."""


def run_pass(item: GraphPass, graph_module: torch.fx.GraphModule) -> int:
    """Rewrite a graph if the pass applies to it."""
    return item.rewrite(graph_module) if item.applies(graph_module) else 0


def run_passes(passes: Iterable[GraphPass], graph_module: torch.fx.GraphModule, run: RunPass = run_pass) -> None:
    """Run passes one after the other.

    Args:
        passes: in their order.
        graph_module: is changed.
        run: runs each of them.
    """
    for item in passes:
        run(item, graph_module)
