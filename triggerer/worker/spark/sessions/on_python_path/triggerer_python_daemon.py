"""PySpark's daemon, which starts Python workers, in a process group that the kernel kills with our worker's group.

PySpark's own daemon makes a separate group, notices only later that the JVM is gone, and then stops its workers. On a
busy machine that takes seconds. When an executor's lease ends, nothing may depend on code that must first get a
processor (`triggerer.executor.lease.lease_guard`).

`spark.python.daemon.module` names this module, and its folder is in the JVM's PYTHONPATH. The Python of the workers
runs it, and need not have triggerer installed.
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
    # PySpark does this as well, a moment later.
    os.setpgid(0, 0)
    for path in os.environ["TRIGGERER_LIFELINES"].split(os.pathsep):
        try:
            lifelines.die_with_writer(lifelines.open_again(path))
        except OSError as error:
            # Our worker is gone, and so is the JVM. The daemon will notice.
            sys.stderr.write(f"triggerer: {path} cannot be opened: {error}\n")


if __name__ == "__main__":
    _arm()
    daemon.manager()  # type: ignore[no-untyped-call,unused-ignore]
