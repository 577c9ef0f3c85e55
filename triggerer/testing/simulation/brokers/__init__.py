"""Models of brokers, and producers that read them."""
