"""What is stored of a compiled region: where inductor's own cache has it.

Place: between ``compile`` and ``load`` of the backend, in the artifact store.
Input: what was compiled. Output: JSON. Inductor keeps code and kernels itself, under a key of its own of the graph that
a region becomes; to make that graph again, and its key, takes longer than to load what lies there.
Invariants: a reference is followed only where inductor would make the same of the region again (``surroundings``); it
is a plain name, so that it leads nowhere but into that cache.
Non-goals: regions with symbolic sizes: their guards are found by tracing.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

Strides = Literal["as_traced", "unknown"]
"""What inductor's regions promise of ``CompiledRegion.strides``."""


class Reference(BaseModel):
    """See the module's docstring.

    Attributes:
        entry: name of the compiled graph in inductor's cache.
        surroundings: what the compilation depended on beside the region.
        strides: of its outputs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    entry: Annotated[str, StringConstraints(pattern="^[A-Za-z0-9]+$")]
    surroundings: str
    strides: Strides

    @classmethod
    def read(cls, artifact: bytes) -> Reference:
        """From an artifact.

        Raises:
            ValueError: it is none.
        """
        return cls.model_validate_json(artifact, strict=True)

    def written(self) -> bytes:
        """As an artifact."""
        return self.model_dump_json().encode()
