"""Answers as JSON, written by the same library as the `--json` of the commands."""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from litestar import Response
from litestar.enums import MediaType

T = TypeVar("T")


class JsonResponse(Response[T]):
    """An answer whose content is a view, or bytes that are sent as they are."""

    def render(self, content: Any, media_type: str, enc_hook: Any = None) -> bytes:
        """Return the body."""
        if isinstance(content, bytes):
            return content
        if content is None:
            return b""
        if media_type != MediaType.JSON:
            return super().render(content, media_type, enc_hook)
        return orjson.dumps(content, default=str, option=orjson.OPT_NON_STR_KEYS)
