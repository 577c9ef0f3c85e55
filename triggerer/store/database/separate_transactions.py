"""Performs scripts that only read, with one transaction for each step."""

from __future__ import annotations

from triggerer.store.database.script import (
    Row,
    Script,
    Step,
    T,
    perform,
    perform_stepwise,
    single_step,
)
from triggerer.store.database.transactions import Database


async def perform_in_separate_transactions(database: Database, script: Script[T]) -> T:
    """Perform a script that only reads, each step in a transaction of its own.

    So no transaction is open while the script computes. Otherwise PostgreSQL could end the session, because of
    `idle_in_transaction_session_timeout`. The steps may see different states of the database.

    Raises:
        StoreUnavailable, StoreRefused: As for `Database.reading`.
    """

    async def perform_step(step: Step) -> list[Row]:
        async with database.reading() as session:
            return await perform(session, single_step(step))

    return await perform_stepwise(perform_step, script, {})
