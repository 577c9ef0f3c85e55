"""Finds what people were not told about yet, and stores the messages until targets have accepted them."""
