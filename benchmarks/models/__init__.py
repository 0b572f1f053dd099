"""The model suite, scaled-down instances of real models: ``registry`` lists them, ``entry`` is one."""
