"""One token after the other: steps of generation beside other engines, ``mixbackend bench decode``."""
