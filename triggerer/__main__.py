"""`python -m triggerer` runs the command `triggerer` even if the command's script is not on the path."""

import sys

from triggerer.cli.main import main

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # With `-m`, Python searches the working directory first. A package `watchers` there would hide ours.
        del sys.path[0]
    main()
