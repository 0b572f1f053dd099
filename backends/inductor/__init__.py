"""Torch's own inductor as a peer in the mixture."""

from mixbackend.backends.inductor.backend import InductorBackend

__all__ = ["InductorBackend"]
