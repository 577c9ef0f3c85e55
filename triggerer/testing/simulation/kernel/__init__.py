"""Virtual time, the draws of a seed, and the values that all models share."""
