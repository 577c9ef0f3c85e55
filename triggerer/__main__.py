"""`python -m triggerer`: the `triggerer` command where its script is not on the path."""

from triggerer.cli.main import main

if __name__ == "__main__":
    main()
