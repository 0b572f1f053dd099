"""What ``torch.compiler.save_cache_artifacts`` carries from one process to another, our caches among it.

Place: a part of the door; see ``contracts.torch_compat``. Input: a kind of content, and what makes it. Output: content
of that kind, in a process that loads it.
Invariants: content is made when the user's program saves, not before: most processes never do. A process knows a kind
before it loads; torch drops everything else, too, where it meets a kind that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Take = Callable[[str, bytes], None]
"""Takes a key and its content."""


def know_saved_caches(kind: str, take: Take) -> None:
    """Let torch load content of a kind; a second call for a kind does nothing.

    Args:
        kind: its name; a Python identifier, unlike all others.
        take: what is done with loaded content. Must not raise.
    """
    from torch.compiler._cache import CacheArtifactFactory

    if kind not in CacheArtifactFactory._artifact_types:
        CacheArtifactFactory.register(_artifact_class(kind, take))


def add_to_saved_caches(kind: str, key: str, content: Callable[[], bytes]) -> None:
    """Have torch save content with everything else that it saves next.

    Args:
        kind: one that ``know_saved_caches`` was told.
        key: distinguishes content of this kind; what is saved under an equal key already is not saved again.
        content: makes it. Must not raise: nothing at all would be saved.
    """
    from torch.compiler._cache import CacheArtifactManager

    CacheArtifactManager.record_artifact(kind, key, content)


def _artifact_class(kind: str, take: Take) -> Any:
    """Torch's class of what is saved and loaded, for a kind."""
    from torch.compiler._cache import CacheArtifact

    class Carried(CacheArtifact):
        """Content, or what makes it; equal by its key."""

        def __init__(self, key: str, content: bytes | Callable[[], bytes]) -> None:
            object.__setattr__(self, "key", key)
            object.__setattr__(self, "_content", content)

        @property
        def content(self) -> bytes:  # type: ignore[override]
            made = self._content  # type: ignore[attr-defined]
            return made() if callable(made) else made

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Carried) and other.key == self.key

        def __hash__(self) -> int:
            return hash((kind, self.key))

        @staticmethod
        def encode(content: Any) -> Any:
            return content

        @staticmethod
        def type() -> str:
            return kind

        def populate_cache(self) -> None:
            take(self.key, self.content)

    return Carried
