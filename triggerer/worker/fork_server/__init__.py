"""The fork server of a worker: it forks a process for each run, and owns the JVM that the runs share."""
