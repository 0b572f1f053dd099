"""How long a first call takes, from the start of the process to its end: ``mixbackend bench first-calls``.

``measure`` asks a process per peer and state of the caches (``worker``); ``samples`` and ``phases`` say what the time
of our own first calls went into.
"""
