"""The conformance suites for producers, triggers and timetables."""
