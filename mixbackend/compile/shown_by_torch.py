"""What torch's own tools show of a program: its code (``TORCH_LOGS=output_code``), its plan and code (``TORCH_TRACE``).

Place: behind ``compile.build``. Input: a program as it was built. Output: text for torch's logs.
Invariants: nothing is computed unless one of these logs is on. Code that the reference runs is the graph itself, and
equal regions have the same code: neither is shown.
"""

from __future__ import annotations

from mixbackend.compile.program import Program
from mixbackend.contracts.torch_compat import log_code, trace_artifact


def show_program(program: Program) -> None:
    """Show a program that was built."""
    graph_id = program.plan.graph_id
    log_code(lambda: f"mixbackend {graph_id}\n{code_of(program)}")
    trace_artifact(f"mixbackend_plan_{graph_id}", "string", lambda: str(program.plan))
    trace_artifact(f"mixbackend_code_{graph_id}", "string", lambda: code_of(program))


def code_of(program: Program) -> str:
    """The function that calls regions, and what backends generated for each."""
    parts = [f"# the graph's function\n{program.stitched.source}"]
    for planned, compiled in zip(program.plan.regions, program.compiled, strict=True):
        if compiled.reused_from is None and not compiled.code.backend.traits().reference and compiled.region.source:
            parts.append(f"# {planned.id} on {compiled.backend}\n{compiled.region.source}")
    return "\n".join(parts)
