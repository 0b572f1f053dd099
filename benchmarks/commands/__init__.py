"""A body per ``mixbackend bench`` command."""
