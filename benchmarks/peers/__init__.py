"""``auto()`` against every peer that users have today: whole models at true size, a process per peer, in turns."""
