"""``python -m mixbackend``: the same as the command ``mixbackend``."""

from mixbackend.cli import main

if __name__ == "__main__":
    main()
