"""An engine as bytes for the artifact store, and back.

Place: ``CompiledRegion.artifact``, ``Backend.load`` and ``Binding``. The store holds them under the region's text, the
backend's fingerprint (release, GPU, driver, settings), the weights policy and the values of weights that are inside,
and checks them on every read.
Invariants: an artifact says which model and which profiles it was built for; nothing is unpickled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

_MAGIC = b"mixbackend engine 1\n"


@dataclass(frozen=True, slots=True)
class EngineArtifact:
    """What is stored of a compiled region.

    Attributes:
        digest: of the model, and of the weights' values if they are inside.
        profiles: text of the optimisation profiles.
        refittable: names of the weights that can be given anew.
        seconds: that the build took.
        engine: serialised, a part of the stored bytes where it was read; empty if engines are built when constants are
            bound.
    """

    digest: str
    profiles: str
    refittable: frozenset[str]
    seconds: float
    engine: bytes | memoryview

    def to_bytes(self) -> bytes:
        """Header and engine."""
        header = {
            "digest": self.digest,
            "profiles": self.profiles,
            "refittable": sorted(self.refittable),
            "seconds": self.seconds,
        }
        text = json.dumps(header).encode()
        return b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, self.engine])

    @property
    def note(self) -> str:
        """For the report."""
        return f"engine built in {self.seconds:.0f} s"

    def check(self, digest: str, profiles: str) -> None:
        """Hold it against what it is to serve.

        Raises:
            ValueError: it is for something else.
        """
        if (self.digest, self.profiles) != (digest, profiles):
            raise ValueError("the engine was built for another model, other sizes or other weights")

    @staticmethod
    def from_bytes(content: bytes) -> EngineArtifact:
        """Read an artifact.

        Raises:
            ValueError: the bytes are none.
        """
        if not content.startswith(_MAGIC):
            raise ValueError("the artifact holds no engine of this form")
        start = len(_MAGIC) + 8
        end = start + int.from_bytes(content[len(_MAGIC) : start], "little")
        try:
            header = json.loads(content[start:end])
            return EngineArtifact(
                header["digest"],
                header["profiles"],
                frozenset(header["refittable"]),
                float(header["seconds"]),
                memoryview(content)[end:],
            )
        except (KeyError, TypeError, UnicodeDecodeError) as error:
            raise ValueError(f"the artifact's header is damaged: {error!r}") from error
