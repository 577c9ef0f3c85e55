"""Prints the answers of Airflow's partition mappers to test cases.

The program runs with a Python that has Airflow, and without our packages. It reads a JSON list of cases
`{"mapper", "keys", "runs"}` from standard input. It prints a JSON list of answers, each with two items:

- for each of the events' `keys`, the keys of the runs that use the event;
- for each of the `runs`, the keys of the events that the run waits for. If the mapper is no roll-up, the item is null.

"refused" means that Airflow raised a `ValueError`.
"""

import json
import sys

from airflow import partition_mappers


def made(spec):
    if not isinstance(spec, dict):
        return spec
    kind = getattr(partition_mappers, spec["type"])
    arguments = {name: made(value) for name, value in spec["arguments"].items()}
    several = [made(one) for one in arguments.pop("mappers", ())]
    if "segments" in arguments:
        return kind(arguments["segments"])
    return kind(*several, **arguments)


def asking(ask, value):
    try:
        found = ask(value)
    except ValueError:
        return "refused"
    return [found] if isinstance(found, str) else list(found)


def answers(case):
    mapper = made(case["mapper"])
    keys = [asking(mapper.to_downstream, key) for key in case["keys"]]
    if not mapper.is_rollup:
        return [keys, None]
    return [keys, [sorted(asking(mapper.to_upstream, run)) for run in case["runs"]]]


if __name__ == "__main__":
    json.dump([answers(case) for case in json.load(sys.stdin)], sys.stdout)
