"""A run as the store shows it, with names as long as real ones."""

from datetime import UTC, datetime, timedelta

from triggerer.store.listing.views import RunView

RUN_ID = "asset_triggered__2026-11-22T13:40:40.821666+00:00"
NAME = "totals_per_region_and_currency"
AT = datetime(2026, 11, 22, 13, 40, 40, tzinfo=UTC)


def run(error: str | None) -> RunView:
    return RunView(
        dag_id=NAME,
        run_id=RUN_ID,
        run_type="asset_triggered",
        state="failed" if error else "success",
        logical_date=None,
        data_interval_start=None,
        data_interval_end=None,
        run_after=AT,
        queued_at=AT,
        started_at=AT,
        ended_at=AT + timedelta(seconds=2),
        error=error,
        params={},
        exit_code=None,
        attempt=1,
        executor="vm:17391:7e812030",
        log_path=None,
        partition_key=None,
    )
