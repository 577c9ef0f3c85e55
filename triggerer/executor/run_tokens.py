"""Adds an API token to the order of an attempt."""

from __future__ import annotations

from dataclasses import replace

import structlog

from triggerer.domain.attempts import RunOrder
from triggerer.errors import TransientStoreError
from triggerer.store.access.run_tokens import run_token
from triggerer.store.access.service_key import service_key
from triggerer.store.database.transactions import Database

_log = structlog.get_logger(__name__)


class RunTokens:
    """Makes the API tokens of attempts. The key that signs the tokens is read from the database once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key: bytes | None = None

    async def add_to(self, order: RunOrder) -> RunOrder:
        """Return the order with its API token.

        If the database is unavailable and the key was not read yet, return the order unchanged: few runs need a token.
        """
        try:
            if self._key is None:
                self._key = await service_key(self._database)
        except TransientStoreError as error:
            _log.warning("a run gets no token for the API", run=order.run_id, error=str(error))
            return order
        token = run_token(self._key, order.run_pk, order.attempt, order.epoch)
        return replace(order, api_token=token)
