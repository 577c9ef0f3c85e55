"""Access to the HTTP API: tokens, browser sessions, one-time login links, idempotency keys, and the services' key.

Only the SHA-256 of a client's secret is stored. A slow hash would protect no better, because the secrets are long and
random. The services' own key is stored in plain text.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from triggerer.store.schema.models.base import Base, UtcDateTime


class ApiToken(Base):
    """A token that people and programs send with their requests."""

    __tablename__ = "api_token"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    """The middle part of `trg_<id>_<secret>`."""
    name: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(String(20))
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the whole token."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """None: the token does not expire."""
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """A request updates this time only if the stored time is at least five minutes old. So most requests do not write.
    """
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ApiSession(Base):
    """A browser that has signed in."""

    __tablename__ = "api_session"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the cookie."""
    name: Mapped[str] = mapped_column(Text)
    """The person, or the name of the token."""
    role: Mapped[str] = mapped_column(String(20))
    token_id: Mapped[str | None] = mapped_column(ForeignKey("api_token.id"), index=True)
    """The token that opened the session. The session ends with the token."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class ApiLogin(Base):
    """A link that signs a browser in, and can be used once. The row is deleted when the link is used."""

    __tablename__ = "api_login"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the code in the link."""
    name: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(String(20))
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ApiRequest(Base):
    """A request with an `Idempotency-Key`.

    A later request of the same sender with this key is answered as a duplicate if its path and body are the same.
    Otherwise it is refused.
    """

    __tablename__ = "api_request"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the sender and the key."""
    request: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the request's path and body."""
    made_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class ApiKey(Base):
    """The secret key with which the services sign run tokens and requests to one another. The table has one row."""

    __tablename__ = "api_key"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    secret: Mapped[str] = mapped_column(String(64))
