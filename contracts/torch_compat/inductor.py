"""Inductor as one backend among others.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.torch_compat.operators import composite_implicit
from mixbackend.contracts.torch_compat.output_strides import keep_output_strides, output_strides


def inductor_handling(operator: Any) -> str:
    """How inductor treats an operator overload: ``lowered``, ``decomposed``, ``fallback`` (calls eager), ``none``."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.lowering import fallbacks, lowerings

    if operator in lowerings:
        return "fallback" if operator in fallbacks else "lowered"
    return "decomposed" if operator in select_decomp_table() or composite_implicit(operator) else "none"


def inductor_compile(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    fake_mode: Any,
    exact_outputs: Sequence[int],
    phase: str,
    static_inputs: Sequence[int] = (),
) -> Any:
    """Compile an ATen graph, already in inductor's decomposition, as inductor compiles a forward or backward graph.

    Args:
        graph_module: changed in place.
        inputs: fake values of its placeholders.
        fake_mode: their mode; call inside ``tracing_apart(fake_mode)``.
        exact_outputs: positions of the outputs whose strides must be those of their fake values.
        phase: ``inference``, ``forward`` or ``backward``.
        static_inputs: positions of inputs that are the same tensors at every call, with aligned memory.

    Returns:
        A callable on one list of arguments, which it empties.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    # Inductor's cache does not know which outputs are exact: it would give this graph the code of an equal one.
    tag = f"{torch.compiler.config.cache_key_tag} exact {list(exact_outputs)}"
    tagged = torch.compiler.config.patch(cache_key_tag=tag)  # type: ignore[attr-defined]
    with V.set_fake_mode(fake_mode), config.patch(freezing=False, cpp_wrapper=False), tagged:
        if config.use_joint_graph_passes:
            expected, old = output_strides(graph_module), frozenset(graph_module.graph.nodes)
            graph_module = joint_graph_passes(graph_module)
            keep_output_strides(graph_module, inputs, expected, exact_outputs, old)
        output = next(iter(graph_module.graph.find_nodes(op="output")))
        output.meta["user_visible_output_idxs"] = list(exact_outputs)
        return compile_fx_inner(
            graph_module,
            list(inputs),
            static_input_idxs=list(static_inputs),
            is_inference=phase == "inference",
            is_backward=phase == "backward",
        )


def inductor_settings() -> str:
    """Text of every inductor setting that changes what it compiles."""
    from torch._inductor import config

    return repr(sorted(config.save_config_portable().items()))


def inductor_source(compiled: Any) -> str:
    """The code that inductor generated for a compiled graph, ``""`` if it is not at hand."""
    return str(getattr(compiled, "source_code", "") or "")
