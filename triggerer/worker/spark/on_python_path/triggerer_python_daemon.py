"""PySpark's daemon, which starts the Python workers, in a process group that the kernel kills with our worker's.

PySpark's own daemon makes a group of its own, notices by itself that the JVM is gone, and tells its workers: on a
machine that is busy that takes seconds. Nothing that is needed when an executor's lease ends may be code that has to be
given a processor first (`triggerer.executor.lease_guard`).

`spark.python.daemon.module` names it, and its folder is in the JVM's PYTHONPATH: it is run by whatever Python runs the
workers, which need not have triggerer.
"""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from pyspark import daemon


def _arm() -> None:
    spec = spec_from_file_location(
        "lifelines", Path(__file__).parents[3] / "processes" / "lifelines.py"
    )
    assert spec is not None
    assert spec.loader is not None
    lifelines = module_from_spec(spec)
    spec.loader.exec_module(lifelines)
    # As PySpark does a moment later.
    os.setpgid(0, 0)
    for path in os.environ["TRIGGERER_LIFELINES"].split(os.pathsep):
        try:
            lifelines.die_with_writer(lifelines.open_again(path))
        except OSError as error:
            # Our worker is gone: so is the JVM, as the daemon is about to notice.
            sys.stderr.write(f"triggerer: {path} cannot be opened: {error}\n")


if __name__ == "__main__":
    _arm()
    daemon.manager()
