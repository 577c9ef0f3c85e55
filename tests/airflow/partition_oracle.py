"""Answers of Airflow's partition mappers. Run by a Python that has Airflow; imports nothing of ours.

Standard input: JSON, a list of `{"mapper", "keys", "runs"}`. Standard output: for each, what each key is for, and what
each run waits for (null: no roll-up); "refused" where Airflow raises.
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
