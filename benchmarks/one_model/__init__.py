"""One model of the suite, held against eager and timed, in a process of its own."""
