"""The arguments with which a DAG file makes a poll."""

import math
from typing import Any

import pytest

from triggerer.errors import DagError
from watchers.http import HttpPollTrigger


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"url": ""}, "url must be a non-empty text"),
        ({"url": "ftp://x"}, "must begin with http"),
        ({"url": "http://"}, "must begin with http"),
        ({"url": "http://u:p@x/"}, "has a user or a password"),
        ({"url": "http://x:99999/"}, "url is no URL"),
        *(
            ({"poke_interval": seconds}, "poke_interval must be a number of seconds above 0")
            for seconds in (0, -1, True, "5", math.nan, math.inf)
        ),
        ({"item_key": "id"}, "items is missing"),
        ({"items": "@nope"}, "messages have no '@nope'"),
        ({"cursor": "next"}, "cursor must be"),
        ({"cursor": {"path": "next"}}, "cursor must be"),
        ({"cursor": {"path": "", "param": "after"}}, "a path must be a non-empty text"),
        ({"cursor": {"path": "next", "param": ""}}, "cursor's param must be a non-empty text"),
        ({"first": "none"}, 'first must be "all" or "skip"'),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(DagError, match=says):
        HttpPollTrigger(**{"url": "http://x/y"} | arguments)
