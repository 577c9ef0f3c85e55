"""PySpark's daemon for Python workers, in a process group that the kernel kills together with our worker's group.

PySpark's own daemon makes a separate group. It stops its Python workers once it notices that the JVM is gone. On a busy
machine it takes seconds to notice. But when our executor's lease ends, all processes of the executor must die at once,
even if they get no processor time (`triggerer.executor.lease.lease_guard`).

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
    # A lifeline is a pipe. When its writer has ended, the kernel kills the process group of its reader. So leave the
    # JVM's group before this process reads from the lifelines. PySpark calls setpgid too, but later.
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
