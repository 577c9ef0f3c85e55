"""PySpark's daemon for Python workers, in a process group that the kernel kills together with our worker's group.

When our executor's lease ends, all processes of the executor must die at once, even without processor time
(`triggerer.executor.lease.lease_guard`). PySpark's own daemon lives until it notices that the JVM is gone. On a busy
machine, this takes seconds.

`spark.python.daemon.module` names this module, and its folder is in the JVM's PYTHONPATH. triggerer need not be
installed in the Python that runs this module.
"""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from pyspark import daemon


def _arm() -> None:
    spec = spec_from_file_location(
        "lifelines", Path(__file__).parents[4] / "processes" / "lifelines.py"
    )
    assert spec is not None
    assert spec.loader is not None
    lifelines = module_from_spec(spec)
    spec.loader.exec_module(lifelines)
    # When a lifeline's writer is gone, the kernel kills the group that this process had when it called
    # `die_with_writer`. So leave the JVM's group first. PySpark calls setpgid too, but only later.
    os.setpgid(0, 0)
    for path in os.environ["TRIGGERER_LIFELINES"].split(os.pathsep):
        try:
            lifelines.die_with_writer(lifelines.open_again(path))
        except OSError as error:
            # Our worker and the JVM are gone. PySpark's daemon notices that, and ends.
            sys.stderr.write(f"triggerer: {path} cannot be opened: {error}\n")


if __name__ == "__main__":
    _arm()
    daemon.manager()  # type: ignore[no-untyped-call,unused-ignore]
