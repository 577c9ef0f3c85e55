"""`python -m triggerer`: the `triggerer` command where its script is not on the path."""

import sys

from triggerer.cli.main import main

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `-m` puts the folder that it is called from first, and `watchers` there may be somebody else's.
        del sys.path[0]
    main()
