"""`triggerer watchers`: how watchers fare, their parked messages, and the consumer lag of their sources."""
