"""The text of an error that the store receives."""

import pytest

from triggerer.errors import BrokerUnavailable
from triggerer.isolation.pickling import PackedError
from triggerer.observability import redaction
from triggerer.observability.error_texts import error_text, traceback_text
from triggerer.observability.redaction import remember_secret
from triggerer.worker.failures import storable

SECRET = "hunter-22-hunter"


@pytest.fixture(autouse=True)
def _nothing_else_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", {})
    monkeypatch.setattr(redaction, "_known_pattern", None)
    remember_secret(SECRET)


def raised(message: str) -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError(message)
    return caught.value


def test_a_secret_is_in_no_error_that_is_stored() -> None:
    error = raised(f"no login with {SECRET} for me")
    assert error_text(error) == "RuntimeError: no login with *** for me"
    assert storable(str(error)) == "no login with *** for me"
    assert SECRET not in traceback_text(error)
    assert "no login with *** for me" in traceback_text(error)


def test_a_secret_at_the_cut_of_a_long_error_is_hidden_before_it_is_cut() -> None:
    error = raised("x" * 3_980 + SECRET)
    assert "hunter" not in error_text(error)
    assert "hunter" not in storable("x" * 2_995 + SECRET + "x" * 20_000)


def test_a_secret_does_not_leave_the_process_in_which_it_is_known() -> None:
    packed = PackedError.of(raised(f"no login with {SECRET}"))
    assert SECRET not in repr(packed)
    assert str(packed.unpack()) == "RuntimeError: no login with ***"
    others = PackedError.of(raised("no route")).unpack()
    assert isinstance(others, RuntimeError)


def test_a_traceback_that_cannot_be_made_is_named() -> None:
    error = SyntaxError("s")
    error.text, error.lineno = 5, "x"  # type: ignore[assignment]
    assert traceback_text(error) == "SyntaxError (its traceback cannot be shown: AttributeError)"


class _Unreachable(BrokerUnavailable):
    """A plugin's own class of a broker's error."""


@pytest.mark.parametrize("kind", [BrokerUnavailable, _Unreachable])
def test_the_error_of_a_broker_is_its_message_without_the_name_of_a_class(
    kind: type[BrokerUnavailable],
) -> None:
    assert error_text(kind("orders: no answer")) == "orders: no answer"
    assert error_text(kind("")) == kind.__name__
