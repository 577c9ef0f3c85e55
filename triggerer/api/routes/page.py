"""The web page: its built files, and one HTML document for every screen."""

from __future__ import annotations

import html
import mimetypes
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

from litestar import Request, Response, Router
from litestar.enums import MediaType

from triggerer.api.gate import part
from triggerer.api.parameters import InPath
from triggerer.api.problems import anchor_of, status_of
from triggerer.api.routing import public
from triggerer.errors import NothingThere, TriggererError

_FOLDER: Final = files("triggerer.api") / "page"
_NOT_BUILT: Final = (
    '<!doctype html><html lang="en"><title>triggerer</title><base href="/">'
    "<p>The page is not built in this checkout: <code>make web</code>. The API is at <code>/api/v1</code>."
)
_BASE: Final = '<base href="/">'


@public("/", include_in_schema=False)
async def home(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Serve the page."""
    return _document(request)


@public("/{path:path}", include_in_schema=False)
async def file_or_screen(request: Request[Any, Any, Any], path: InPath) -> Response[bytes]:
    """Serve a built file, or the page for the path of a screen."""
    name = path.strip("/")
    if name.startswith(("api/", "health", "metrics", "livez", "readyz")) or name == "api":
        raise NothingThere(
            "there is nothing at this path", hint="/api/v1/openapi.json lists the paths"
        )
    found = _read(name)
    if found is None:
        return _document(request)
    kind, _ = mimetypes.guess_type(name)
    # The name of a file in `assets/` contains a digest of its content, so a browser may cache the file for ever.
    cache_control = (
        "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
    )
    return Response(
        found,
        media_type=kind or "application/octet-stream",
        headers={"Cache-Control": cache_control},
    )


def _document(request: Request[Any, Any, Any]) -> Response[bytes]:
    document = _read("index.html")
    text = _NOT_BUILT if document is None else document.decode()
    prefix = str(request.scope["state"]["prefix"])
    text = text.replace(_BASE, f'<base href="{html.escape(prefix)}/">', 1)
    return Response(text.encode(), media_type=MediaType.HTML)


def _read(name: str) -> bytes | None:
    """Return a built file, or None if the build has no file of this name."""
    return _built_files().get(part(name))


@cache
def _built_files() -> Mapping[str, bytes]:
    """Return all files of the build by their names, such as `assets/index.js`. Together they have some 400 kB."""
    return dict(_files_in(_FOLDER, ""))


def _files_in(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    if not folder.is_dir():
        return
    for one in folder.iterdir():
        if one.is_file():
            yield f"{prefix}{one.name}", one.read_bytes()
        else:
            yield from _files_in(one, f"{prefix}{one.name}/")


@public("/docs/errors", include_in_schema=False)
async def error_classes() -> Response[bytes]:
    """Serve a page that describes every class of error. The `type` of a problem links to the section of its class."""
    return Response(_errors_page(), media_type=MediaType.HTML)


@cache
def _errors_page() -> bytes:
    rows = "".join(
        f'<dt id="{anchor_of(kind)}"><b>{kind.__name__}</b> ({status_of(kind)})</dt>'
        f"<dd>{html.escape(' '.join((kind.__doc__ or '').split()))}</dd>"
        for kind in sorted(_all_kinds(TriggererError), key=lambda kind: kind.__name__)
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Errors - triggerer</title>'
        f"<h1>Errors</h1><p>The number is the status of an answer.</p><dl>{rows}</dl>"
    ).encode()


def _all_kinds(kind: type[TriggererError]) -> set[type[TriggererError]]:
    return {kind}.union(*(_all_kinds(one) for one in kind.__subclasses__()))


ROUTER = Router("/", route_handlers=[home, file_or_screen, error_classes], include_in_schema=False)
