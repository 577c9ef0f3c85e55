"""Opens and ends the session of a browser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from litestar import Request, Response, Router, delete, get, post
from litestar.datastructures import Cookie
from litestar.params import JSONBody, QueryParameter

from triggerer.api.access.authorizing import PUBLIC, SECURE_COOKIE, cookie_name
from triggerer.api.access.csrf import refuse_other_origins
from triggerer.api.parameters import Api, request_id
from triggerer.errors import SignInNeeded
from triggerer.operations.access import sessions
from triggerer.store.access.sessions import SESSION_LENGTH

AnyRequest = Request[Any, Any, Any]
_PUBLIC = {"role": PUBLIC}
_SESSION_S: Final = int(SESSION_LENGTH.total_seconds())
_PENDING_S: Final = 600


@dataclass(frozen=True, slots=True)
class SignIn:
    """The token to sign in with."""

    token: str


@dataclass(frozen=True, slots=True)
class SignedIn:
    """The session that was opened."""

    name: str
    role: str


@post("/api/v1/session", opt=_PUBLIC, status_code=200)
async def sign_in(api: Api, request: AnyRequest, data: JSONBody[SignIn]) -> Response[SignedIn]:
    """Open a session with a token. The answer sets a cookie for 12 hours."""
    refuse_other_origins(request)
    async with api.use.changing() as session:
        opened = await sessions.sign_in_by_token(session, data.token.strip(), request_id(request))
    return Response(
        SignedIn(opened.name, opened.role),
        cookies=[_session_cookie(request, opened.secret)],
        status_code=200,
    )


@delete("/api/v1/session", opt=_PUBLIC, status_code=204)
async def sign_out(api: Api, request: AnyRequest) -> Response[None]:
    """End the session of this browser."""
    refuse_other_origins(request)
    if secret := request.cookies.get(cookie_name(request)):
        async with api.use.changing() as session:
            await sessions.sign_out(session, secret, request_id(request))
    return Response(None, cookies=[_session_cookie(request, "", max_age=0)], status_code=204)


@get("/login", opt=_PUBLIC)
async def use_link(
    api: Api, request: AnyRequest, code: Annotated[str, QueryParameter(max_length=200)]
) -> Response[None]:
    """Open a session with the one-time code of a link, and go to the page."""
    async with api.use.changing() as session:
        opened = await sessions.sign_in_by_link(session, code, request_id(request))
    target = request.scope["state"]["prefix"] + "/"
    cookies = [_session_cookie(request, opened.secret)]
    return Response(None, status_code=303, headers={"Location": target}, cookies=cookies)


@get("/oidc/login", opt=_PUBLIC)
async def begin_oidc(api: Api, request: AnyRequest) -> Response[None]:
    """Send the browser to the OpenID Connect provider."""
    provider = await api.oidc()
    url, pending = await provider.begin(_callback(request))
    cookie = _cookie(request, _pending_name(request), pending, max_age=_PENDING_S)
    return Response(None, status_code=303, headers={"Location": url}, cookies=[cookie])


@get("/oidc/callback", opt=_PUBLIC)
async def finish_oidc(
    api: Api,
    request: AnyRequest,
    code: Annotated[str, QueryParameter(max_length=4_000)] = "",
    given_state: Annotated[str, QueryParameter(name="state", max_length=200)] = "",
    error: Annotated[str, QueryParameter(max_length=200)] = "",
) -> Response[None]:
    """Open a session for the person whom the provider has identified, and go to the page."""
    if error:
        raise SignInNeeded(f"the provider refused the sign-in: {error}", hint="sign in again")
    provider = await api.oidc()
    person = await provider.finish(
        code=code,
        state=given_state,
        cookie=request.cookies.get(_pending_name(request)),
        redirect_uri=_callback(request),
    )
    async with api.use.changing() as session:
        opened = await sessions.sign_in_person(
            session, person.name, person.role, request_id(request)
        )
    target = request.scope["state"]["prefix"] + "/"
    cookies = [
        _session_cookie(request, opened.secret),
        _cookie(request, _pending_name(request), "", max_age=0),
    ]
    return Response(None, status_code=303, headers={"Location": target}, cookies=cookies)


def _callback(request: AnyRequest) -> str:
    scheme, prefix = request.scope["scheme"], request.scope["state"]["prefix"]
    return f"{scheme}://{request.headers['host']}{prefix}/oidc/callback"


def _pending_name(request: AnyRequest) -> str:
    return f"{cookie_name(request)}-oidc"


def _session_cookie(request: AnyRequest, secret: str, *, max_age: int = _SESSION_S) -> Cookie:
    return _cookie(request, cookie_name(request), secret, max_age=max_age)


def _cookie(request: AnyRequest, name: str, value: str, *, max_age: int) -> Cookie:
    """Return a cookie. A `max_age` of 0 deletes the browser's cookie of this name.

    A deletion needs all attributes too, because a browser ignores a `__Host-` cookie that is not secure.
    """
    return Cookie(
        key=name,
        value=value,
        max_age=max_age,
        path="/",
        secure=cookie_name(request) == SECURE_COOKIE,
        httponly=True,
        # With "strict", the browser would send no cookie when the user follows a link from a chat. The user would have
        # to sign in again.
        samesite="lax",
    )


ROUTER = Router("/", route_handlers=[sign_in, sign_out, use_link, begin_oidc, finish_oidc])
