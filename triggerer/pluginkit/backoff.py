"""Growing delays with full jitter, which plugins and the service use."""

from triggerer.backoff import Backoff, is_worth_a_line, retry

__all__ = ["Backoff", "is_worth_a_line", "retry"]
