"""What a compiled region leaves on disk: all that is needed to run it again.

Place: between the backend and the artifact store. Input: the runner's text, the call table, the target's own artifact.
Output: bytes, and the same back: a line of JSON, then the target's bytes as they are.
Invariants: reading needs nothing of the code generator but the call table; bytes of another format are refused, so that
the region is compiled anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from mixbackend.backends.codegen.ir.call_table import CallTable
from mixbackend.contracts import CodegenError

FORMAT = "codegen region 1"
"""Changes with what is stored, and with what the runner's text expects of ``runner``."""


@dataclass(frozen=True, slots=True)
class RegionArtifact:
    """See the module's docstring.

    Attributes:
        runner: Python text of the run function.
        calls: how the target's kernels are called.
        compiled: the target's artifact.
    """

    runner: str
    calls: CallTable
    compiled: bytes

    def to_bytes(self) -> bytes:
        """The artifact as the store keeps it."""
        head = {"format": FORMAT, "runner": self.runner, "calls": self.calls.to_json()}
        return json.dumps(head).encode() + b"\n" + self.compiled

    @classmethod
    def from_bytes(cls, content: bytes) -> RegionArtifact:
        """The artifact behind stored bytes.

        Raises:
            CodegenError: they are not one, or one of another version.
        """
        head, _, compiled = content.partition(b"\n")
        try:
            fields = json.loads(head)
            if fields["format"] != FORMAT:
                raise CodegenError(f"an artifact has the format {fields['format']!r} instead of {FORMAT!r}")
            return cls(str(fields["runner"]), CallTable.from_json(fields["calls"]), compiled)
        except (ValueError, KeyError, TypeError) as error:
            raise CodegenError(f"an artifact of a region cannot be read: {error}") from error
