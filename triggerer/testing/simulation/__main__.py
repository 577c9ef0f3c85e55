"""`python -m triggerer.testing.simulation --seeds N`: look for a seed that breaks a promise."""

from triggerer.testing.simulation.command import main

if __name__ == "__main__":
    main()
