"""The HTTP answer for each class of error: a status, a link to its entry in errors.md, and a body without secrets."""

from __future__ import annotations

import orjson
import pytest

from triggerer import errors
from triggerer.api.problems import STATUSES, anchor_of, encoded, headers_of, problem_of, status_of
from triggerer.errors import TriggererError
from triggerer.observability.redaction import forget_secrets, remember_secret


def all_kinds(kind: type[TriggererError] = TriggererError) -> list[type[TriggererError]]:
    return [kind, *(one for below in kind.__subclasses__() for one in all_kinds(below))]


EXPECTED = {
    "BadRequest": 400,
    "BodyTooLarge": 413,
    "BrokerUnavailable": 503,
    "Conflict": 503,
    "CursorRefused": 400,
    "DagError": 422,
    "InternalError": 500,
    "KeyReused": 422,
    "MethodNotThere": 405,
    "MoveRefused": 409,
    "NothingThere": 404,
    "OutcomeUnknown": 503,
    "RoleNeeded": 403,
    "RowRefused": 422,
    "ServerBusy": 503,
    "SignInNeeded": 401,
    "StoreRefused": 503,
    "StoreUnavailable": 503,
    "TooManyRequests": 429,
    "TriggererError": 409,
    "UnknownAsset": 404,
    "UnknownDag": 404,
    "UnknownMessage": 404,
    "UnknownRun": 404,
    "UnknownToken": 404,
    "UnknownWatcher": 404,
    "WrongHost": 421,
    "WrongMediaType": 415,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_status_says_who_has_to_act(name: str) -> None:
    assert status_of(getattr(errors, name)) == EXPECTED[name]


def test_each_class_of_error_has_a_status_and_an_anchor_of_its_own() -> None:
    kinds = [kind for kind in all_kinds() if kind.__module__ == errors.__name__]
    assert all(400 <= status_of(kind) < 600 for kind in kinds)
    assert len({anchor_of(kind) for kind in kinds}) == len(set(kinds))
    assert set(STATUSES) <= set(kinds)


def test_an_error_that_may_pass_says_when_to_come_again() -> None:
    assert headers_of(errors.StoreUnavailable("away")) == {"Retry-After": "1"}
    assert headers_of(errors.TooManyRequests("slow", retry_after_s=7)) == {"Retry-After": "7"}
    assert headers_of(errors.SignInNeeded("who")) == {"WWW-Authenticate": "Bearer"}
    assert headers_of(errors.UnknownDag("x")) == {}


def test_a_problem_names_its_kind_the_cause_and_the_next_step() -> None:
    problem = orjson.loads(encoded(problem_of(errors.UnknownDag("x"), request_id="r1")))
    assert problem == {
        "type": "/docs/errors#unknown-dag",
        "title": "Unknown DAG",
        "status": 404,
        "detail": "there is no DAG 'x'",
        "hint": "triggerer dags list shows the known DAGs, triggerer check the files that cannot be read",
        "request_id": "r1",
    }


def test_a_problem_hides_the_secrets_of_the_settings() -> None:
    remember_secret("canary-of-the-broker")
    try:
        error = TriggererError("no login with canary-of-the-broker", hint="password=hunter22")
        written = encoded(problem_of(error, request_id=""))
    finally:
        forget_secrets()
    assert b"canary" not in written
    assert b"hunter22" not in written
