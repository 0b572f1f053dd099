"""How long a program takes from the start of its process to its first result: packages beside others.

``cases`` names the models, ``worker`` makes the files of all peers and starts each from its own; ``measure`` lets
processes take turns and writes the table (``.ci/packages``).
"""
