import orjson

from triggerer.worker.spark.jvm.output import OutputLines

_CHUNK = b"." * 4096


def test_a_line_that_never_ends_is_shown_in_pieces() -> None:
    lines = OutputLines()
    shown = [lines.take(_CHUNK) for _ in range(100)]
    # Each piece is shown with the next two pieces at the latest.
    assert all(any(shown[i : i + 3]) for i in range(97))
    assert b"".join([*shown, lines.end()]).rstrip() == 100 * _CHUNK


def test_a_line_is_shown_whole_when_it_is_not_too_long() -> None:
    lines = OutputLines()
    assert lines.take(b"INFO Utils: Succ") == b""
    assert lines.take(b"essfully started\nWARN") == b"INFO Utils: Successfully started\n"
    assert lines.end() == b"WARN\n"
    assert lines.last_lines == ["INFO Utils: Successfully started", "WARN"]


def test_a_progress_bar_is_shown_and_does_not_displace_the_last_lines() -> None:
    lines = OutputLines()
    lines.take(b"Exception in thread main\n")
    for percent in range(100):
        assert lines.take(b"%d%%\r" % percent) == b"%d%%\r" % percent
    assert lines.take(b"done\n") == b"done\n"
    assert lines.last_lines == ["Exception in thread main", "done"]


def test_an_error_after_text_without_a_newline_is_noticed() -> None:
    lines = OutputLines()
    lines.take(b"....java.lang.OutOf")
    lines.take(b"MemoryError: Java heap space")
    assert lines.is_out_of_memory


def test_the_last_lines_fit_into_a_message_whatever_they_contain() -> None:
    lines = OutputLines()
    lines.take(50 * (b"\x01" * 5_000 + b"\n"))
    # The limit of `fork_server.control`, less the other fields of the message.
    assert len(orjson.dumps(lines.last_lines)) < 179_000
