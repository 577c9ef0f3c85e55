"""The part of Service Bus's management API that describes entities: Atom entries by HTTPS, on a free port."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.services.certificates import Authority

_SERVICEBUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
_NOTHING = '<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">Publicly Listed Services</title></feed>'


class AdministrationDouble:
    """The management API of a namespace. A test sets the entities and their counts.

    Attributes:
        queues, subscriptions: By path, the counts of an entity: `{"Active": 3, "Scheduled": 1}`.
        settings: By path, the settings of an entity, named as in its description: `{"MaxDeliveryCount": "10"}`.
        status: The status of every answer. Only an answer with the status 200 describes the entity.
        paths: The requested paths.
        authority: The certificate to trust.
    """

    def __init__(self, authority: Path) -> None:
        self.queues: dict[str, Mapping[str, int]] = {}
        self.subscriptions: dict[str, Mapping[str, int]] = {}
        self.settings: dict[str, Mapping[str, str]] = {}
        self.status = 200
        self.paths: list[str] = []
        self.tokens: list[str] = []
        self.authority = str(authority)
        self.port = 0

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName=manage;SharedAccessKey=secret"
        )

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/")
        self.paths.append(path)
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.status != 200:
            text = f"<Error><Code>{self.status}</Code><Detail>Manage claims are required.</Detail></Error>"
            return web.Response(status=self.status, text=text, content_type="application/xml")
        if path in self.queues:
            text = _entry("QueueDescription", self.queues[path], self.settings.get(path, {}))
        elif path in self.subscriptions:
            text = _entry(
                "SubscriptionDescription", self.subscriptions[path], self.settings.get(path, {})
            )
        else:
            # For an unknown entity, the service answers without an entry and without an error.
            text = _NOTHING
        return web.Response(text=text, content_type="application/atom+xml")


def _entry(kind: str, counts: Mapping[str, int], settings: Mapping[str, str]) -> str:
    stated = "".join(f"<{name}>{value}</{name}>" for name, value in settings.items())
    details = "".join(
        f"<c:{name}MessageCount>{n}</c:{name}MessageCount>" for name, n in counts.items()
    )
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><title type="text">it</title>'
        f'<content type="application/xml"><{kind} xmlns="{_SERVICEBUS}">{stated}'
        f'<CountDetails xmlns:c="{_COUNTS}">{details}</CountDetails></{kind}></content></entry>'
    )


@asynccontextmanager
async def open_administration(folder: Path) -> AsyncIterator[AdministrationDouble]:
    """Serve on a port of localhost, with a certificate made in `folder`.

    Raises:
        ServiceUnavailable: There is no openssl.
    """
    authority = Authority(folder)
    certificate, key = folder / "server.crt", folder / "server.key"
    authority.issue(certificate, key, days=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    double = AdministrationDouble(authority.file)
    application = web.Application()
    application.router.add_get("/{path:.*}", double.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "localhost", 0, ssl_context=context)
        await site.start()
        double.port = runner.addresses[0][1]
        yield double
    finally:
        await runner.cleanup()
