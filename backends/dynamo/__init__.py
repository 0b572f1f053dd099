"""Backends of Dynamo, ``fn(gm, example_inputs)``, as backends of a mixture."""

from mixbackend.backends.dynamo.backend import DynamoBackend, from_dynamo

__all__ = ["DynamoBackend", "from_dynamo"]
