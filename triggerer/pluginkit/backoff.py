"""Growing delays with full jitter, for plugins: the service's own."""

from triggerer.backoff import Backoff, is_worth_a_line, retry

__all__ = ["Backoff", "is_worth_a_line", "retry"]
