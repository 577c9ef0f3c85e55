"""The tables, and the migrations that create and upgrade them."""
