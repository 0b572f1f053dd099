"""The plan lock file: every graph of a model with its reviewed placement.

Place: beside tuning. Written by ``mixbackend tune MODEL --lock FILE`` from reports; read where graphs are placed, if
the configuration has ``lock.path``.
Files: ``model`` (what is in the file), ``text`` (writing it), ``reading`` (reading and checking it), ``making`` (from a
report to the file), ``differences`` (what the file says against what is here), ``lock`` (what planning asks).
"""
