"""The class that AOTAutograd's cache asks results of third parties to have.

Place: a part of the door, see ``contracts.torch_compat``; imported by itself when something is compiled, since torch's
class comes with its compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch._inductor.output_code import OutputCode

from mixbackend.contracts.torch_compat.autograd_cache import settings_as_asked


class StoredResult(OutputCode):
    """A callable that torch may store.

    Torch copies it, calls ``prepare_for_serialization`` of the copy and pickles that. A process that finds it unpickles
    it and calls ``post_compile`` before anything else.
    """

    def __init__(self) -> None:
        # Torch's wrappers take attributes over from the instance.
        self._boxed_call = True

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Run it on one list of arguments, which it empties."""
        raise NotImplementedError

    def prepare_for_serialization(self) -> None:
        """Let go of what cannot be stored; raises ``no_result_to_store`` where nothing is left."""
        raise NotImplementedError

    def found(self) -> None:
        """It was unpickled: make what it calls."""
        raise NotImplementedError

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """See ``found``."""
        with settings_as_asked():
            self.found()

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Nothing of Triton's is kept with it."""
