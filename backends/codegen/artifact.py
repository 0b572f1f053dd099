"""What a compiled region leaves on disk: all that is needed to run it again.

Place: between the backend and the artifact store. Input: the runner's text, the call table, the target's own artifact.
Output: bytes, and the same back: a line of JSON, then the target's bytes as they are, then the same of a second program
where a region has one.
Invariants: reading needs nothing of the code generator but the call table; bytes of another format are refused, so that
the region is compiled anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from mixbackend.backends.codegen.call_table import CallTable
from mixbackend.contracts import CodegenError

FORMAT = "codegen region 4"
"""Changes with what is stored, and with what the runner's text expects of ``runner``."""


@dataclass(frozen=True, slots=True)
class RegionArtifact:
    """See the module's docstring.

    Attributes:
        runner: Python text of the run function.
        calls: how the target's kernels are called.
        compiled: the target's artifact.
        preparation: of the program that goes before it, see ``prepared``; with it come the places of its inputs, and
            the text of the runner for known constants.
    """

    runner: str
    calls: CallTable
    compiled: bytes
    preparation: RegionArtifact | None = None
    places: tuple[int, ...] = ()
    bound: str = ""

    def to_bytes(self) -> bytes:
        """The artifact as the store keeps it."""
        head = {
            "format": FORMAT,
            "runner": self.runner,
            "calls": self.calls.to_json(),
            "size": len(self.compiled),
            "places": self.places,
            "bound": self.bound,
        }
        rest = b"" if self.preparation is None else self.preparation.to_bytes()
        return json.dumps(head).encode() + b"\n" + self.compiled + rest

    @classmethod
    def from_bytes(cls, content: bytes) -> RegionArtifact:
        """The artifact behind stored bytes.

        Raises:
            CodegenError: they are not one, or one of another version.
        """
        head, _, rest = content.partition(b"\n")
        try:
            fields = json.loads(head)
            if fields["format"] != FORMAT:
                raise CodegenError(f"an artifact has the format {fields['format']!r} instead of {FORMAT!r}")
            compiled, more = rest[: fields["size"]], rest[fields["size"] :]
            if len(compiled) != fields["size"]:
                raise CodegenError("an artifact of a region is cut off")
            preparation = cls.from_bytes(more) if more else None
            places = tuple(map(int, fields["places"]))
            calls = CallTable.from_json(fields["calls"])
            return cls(str(fields["runner"]), calls, compiled, preparation, places, str(fields["bound"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CodegenError(f"an artifact of a region cannot be read: {error}") from error
