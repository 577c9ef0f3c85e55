"""Gives the answers of Airflow's partition mappers for test cases.

The program runs with a Python that has Airflow, without our packages.

Standard input is a JSON list of cases `{"mapper", "keys", "runs"}`. Standard output is a JSON list with an item for
each case. An item has two lists: the runs' keys for each key of an event, and the events' keys that each run waits for.
The second list is null unless the mapper is a roll-up. "refused" means that Airflow raised a `ValueError`.
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
