"""The only door to torch's private names.

Place: imported by whoever needs something that torch does not promise to keep; its parts are by subject.
Invariants: no other module of the project imports a name with a leading underscore from torch, or from a module whose
path has one; ``tests/test_torch_compat.py`` exercises every name here, so a new torch release is this folder's work.
"""

from mixbackend.contracts.torch_compat.capture import (
    aot_compile,
    backward_compiled_at_once,
    boxed,
    input_position,
    is_static_input,
    is_tangent,
    partition_with_min_cut,
    source_name,
)
from mixbackend.contracts.torch_compat.compile_processes import (
    compile_processes_ready,
    in_compile_process,
    start_compile_processes,
)
from mixbackend.contracts.torch_compat.cuda_graphs import (
    cuda_graph_obstacle,
    cuda_graph_recorded,
    cuda_graphs_apart,
    cuda_graphs_enter_backward,
    forget_cuda_graphs,
)
from mixbackend.contracts.torch_compat.deterministic import ask_deterministic, deterministic_asked, warned_at_most
from mixbackend.contracts.torch_compat.devices import (
    current_cuda_device,
    gpu_allocator,
    has_fast_bfloat16,
    raw_cuda_stream,
    recorded_random_state,
)
from mixbackend.contracts.torch_compat.graph_modules import forward_of, graph_module_of, written_when_run
from mixbackend.contracts.torch_compat.graph_trees import GraphTree, ResultsOfGraph, cuda_graph_tree
from mixbackend.contracts.torch_compat.inductor import (
    inductor_compile,
    inductor_handling,
    inductor_settings,
    inductor_source,
)
from mixbackend.contracts.torch_compat.late_kernels import LateKernels, kernels_later
from mixbackend.contracts.torch_compat.memory import (
    copies_of,
    native_tensor_accessors,
    storage_key,
    storage_users,
    storages_in_use,
    storages_of,
    tensor_implementation,
)
from mixbackend.contracts.torch_compat.operators import (
    SchemaArgument,
    composite_implicit,
    decomposition_table,
    is_higher_order,
    is_mutating,
    is_operator,
    operator_by_name,
    operator_database,
    returns_nothing,
    schema_arguments,
)
from mixbackend.contracts.torch_compat.proxies import Trace
from mixbackend.contracts.torch_compat.result_types import MISSTATED, eager_types, retyped
from mixbackend.contracts.torch_compat.symbols import (
    SymbolFacts,
    assumptions,
    declare_symbol,
    fresh_symbol,
    shape_env_of,
    symbol_facts,
    symbolic_bounds,
    symbolic_expression,
    symbolic_functions,
    symbolic_hint,
    symbolic_integer,
    symbolic_number,
)
from mixbackend.contracts.torch_compat.tracing import (
    fresh_fake_mode,
    is_fake,
    outside_compilation,
    rerun_fake,
    tracing_apart,
    walk_metadata,
    without_dispatch_modes,
)

__all__ = [
    "MISSTATED",
    "GraphTree",
    "LateKernels",
    "ResultsOfGraph",
    "SchemaArgument",
    "SymbolFacts",
    "Trace",
    "aot_compile",
    "ask_deterministic",
    "assumptions",
    "backward_compiled_at_once",
    "boxed",
    "compile_processes_ready",
    "composite_implicit",
    "copies_of",
    "cuda_graph_obstacle",
    "cuda_graph_recorded",
    "cuda_graph_tree",
    "cuda_graphs_apart",
    "cuda_graphs_enter_backward",
    "current_cuda_device",
    "declare_symbol",
    "decomposition_table",
    "deterministic_asked",
    "eager_types",
    "forget_cuda_graphs",
    "forward_of",
    "fresh_fake_mode",
    "fresh_symbol",
    "gpu_allocator",
    "graph_module_of",
    "has_fast_bfloat16",
    "in_compile_process",
    "inductor_compile",
    "inductor_handling",
    "inductor_settings",
    "inductor_source",
    "input_position",
    "is_fake",
    "is_higher_order",
    "is_mutating",
    "is_operator",
    "is_static_input",
    "is_tangent",
    "kernels_later",
    "native_tensor_accessors",
    "operator_by_name",
    "operator_database",
    "outside_compilation",
    "partition_with_min_cut",
    "raw_cuda_stream",
    "recorded_random_state",
    "rerun_fake",
    "returns_nothing",
    "retyped",
    "schema_arguments",
    "shape_env_of",
    "source_name",
    "start_compile_processes",
    "storage_key",
    "storage_users",
    "storages_in_use",
    "storages_of",
    "symbol_facts",
    "symbolic_bounds",
    "symbolic_expression",
    "symbolic_functions",
    "symbolic_hint",
    "symbolic_integer",
    "symbolic_number",
    "tensor_implementation",
    "tracing_apart",
    "walk_metadata",
    "warned_at_most",
    "without_dispatch_modes",
    "written_when_run",
]
