"""`triggerer watchers`: shows watchers, their parked messages, and the consumer lag of their sources."""
