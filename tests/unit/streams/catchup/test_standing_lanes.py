"""A standing lane is shown, with the reason, until the lane continues."""

import pytest

from tests.unit.streams.scene import Breaking, Scene, Sink, hosting
from triggerer.abc import ReportStanding

WHY = "there is no topic x"


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[ReportStanding]:
    """Return the report functions that the test's producers received, in order."""
    given: list[ReportStanding] = []

    def use_standing(self: Breaking, report: ReportStanding) -> None:
        given.append(report)

    monkeypatch.setattr(Breaking, "use_standing", use_standing, raising=False)
    return given


async def test_all_watchers_of_the_stream_are_shown_why_until_the_lane_goes_on(
    scene: Scene, reports: list[ReportStanding]
) -> None:
    sink = Sink()
    async with hosting(scene, sink, "one", "two") as (_, one, two):
        await sink.until(lambda: bool(reports))
        (report,) = reports
        report(("t", 0), WHY)
        assert one.standing == two.standing == f'lane ["t",0] stands: {WHY}'
        report(("t", 1), "another reason")
        assert one.standing == f'lane ["t",0] stands, as do 1 more: {WHY}'
        report(("t", 0), None)
        assert one.standing == 'lane ["t",1] stands: another reason'
        report(("t", 1), None)
        report(("t", 1), None)
        assert one.standing is None


async def test_standing_lanes_of_an_ended_group_are_forgotten(
    scene: Scene, reports: list[ReportStanding]
) -> None:
    sink = Sink()
    async with hosting(scene, sink, "one") as (_, one):
        await sink.until(lambda: bool(reports))
        reports[0](("t", 0), WHY)
        scene.is_breaking = True
        scene.publish("a")
        await sink.until(lambda: one.standing is None)
        scene.is_breaking = False
        await sink.until(lambda: len(reports) > 1 and sink.derived(1) == ["a"])
