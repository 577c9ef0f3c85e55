"""Views, filters and counts that several lists use."""
