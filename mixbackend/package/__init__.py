"""Packages: a model as one file that runs without its code and without a compiler.

Place: beside ``api``: ``exporting`` is ``mixbackend.export``, ``loading`` is ``mixbackend.load``.
In the order in which data flows: ``exported`` (from torch.export to graphs), ``signature`` and ``trees`` (what goes in
and comes out), ``compiled`` (compiling for a package), ``weights``, ``container`` (the file), ``model`` (what its parts
say); and back: ``opening``, ``conditions`` and ``substitutes`` (what of it runs here), ``program`` (what is called).
A package is a store of plans and artifacts with the texts of graphs and the weights: graphs go the one way of
``compile.driver``, with plans that are given and a store that is read from the file.
"""
