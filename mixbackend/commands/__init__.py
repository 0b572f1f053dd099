"""Bodies of the command line's commands, one file each; ``mixbackend.cli`` imports them when they are called."""
