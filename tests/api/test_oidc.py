"""Signing in by an OpenID Connect provider, from the first request to the session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from tests.api.conftest import Api
from tests.services.oidc_provider import OidcProviderServer, open_oidc_provider
from triggerer.config.sections import OidcSettings


@pytest.fixture
def provider() -> Iterator[OidcProviderServer]:
    with open_oidc_provider() as server:
        yield server


def with_provider(api: Api, provider: OidcProviderServer) -> Api:
    oidc = OidcSettings(
        issuer=provider.issuer,
        client_id=provider.client_id,
        client_secret=provider.client_secret,
        roles={"ops": "operator", "admins": "admin", "all": "viewer"},
    )
    return api.with_settings(oidc=oidc)


async def sign_in(browser: httpx.AsyncClient, **changes: str) -> httpx.Response:
    """Sign in as a browser does: go to the provider, come back, and return the last answer.

    Args:
        changes: Parameters to forge in the provider's answer.
    """
    begun = await browser.get("/oidc/login")
    assert begun.status_code == 303, begun.text
    async with httpx.AsyncClient() as outside:
        sent = await outside.get(begun.headers["location"])
    back = httpx.URL(sent.headers["location"])
    return await browser.get(back.path, params={**dict(back.params), **changes})


@pytest.mark.parametrize(
    ("groups", "role"),
    [(["ops"], "operator"), (["all", "admins", "other"], "admin"), ("all", "viewer")],
)
async def test_a_person_gets_the_highest_role_of_the_claim(
    api: Api, provider: OidcProviderServer, groups: Any, role: str
) -> None:
    provider.claims["groups"] = groups
    async with with_provider(api, provider).client(None) as browser:
        done = await sign_in(browser)
        assert (done.status_code, done.headers["location"]) == (303, "/")
        whoami = (await browser.get("/api/v1/whoami")).json()
    assert (whoami["name"], whoami["role"]) == ("ann@example.com", role)
    assert await api.audit() == [("session.open", "ann@example.com", "oidc")]


@pytest.mark.parametrize("groups", [[], ["strangers"], None, 7])
async def test_a_person_without_a_role_is_refused(
    api: Api, provider: OidcProviderServer, groups: Any
) -> None:
    provider.claims["groups"] = groups
    async with with_provider(api, provider).client(None) as browser:
        assert (await sign_in(browser)).status_code == 403
        assert (await browser.get("/api/v1/whoami")).status_code == 401
    assert await api.audit() == []


@pytest.mark.parametrize(
    "spoiled",
    [{"iss": "http://evil.example"}, {"aud": "another"}, {"exp": 1}, {"nonce": "another"}],
)
async def test_a_token_for_somebody_else_or_of_another_time_is_refused(
    api: Api, provider: OidcProviderServer, spoiled: dict[str, Any]
) -> None:
    provider.spoil = spoiled
    async with with_provider(api, provider).client(None) as browser:
        assert (await sign_in(browser)).status_code == 401


async def test_a_sign_in_ends_only_in_the_browser_in_which_it_began(
    api: Api, provider: OidcProviderServer
) -> None:
    configured = with_provider(api, provider)
    async with configured.client(None) as browser, configured.client(None) as other:
        assert (await sign_in(browser, state="forged")).status_code == 401
        begun = await browser.get("/oidc/login")
        async with httpx.AsyncClient() as outside:
            sent = await outside.get(begun.headers["location"])
        back = httpx.URL(sent.headers["location"])
        assert (await other.get(back.path, params=dict(back.params))).status_code == 401


async def test_a_cookie_and_a_state_with_any_characters_are_refused(
    api: Api, provider: OidcProviderServer
) -> None:
    """An earlier version answered with 500 for characters outside ASCII, because `hmac.compare_digest` raised
    TypeError."""
    async with with_provider(api, provider).client(None) as browser:
        assert (await sign_in(browser, state="é")).status_code == 401
        (name,) = [one for one in browser.cookies if one.endswith("-oidc")]
    async with with_provider(api, provider).client(None) as browser:
        for cookie in ("x.%C3%A9", "%C3%A9.x", "%ED%A0%80.x"):
            forged = await browser.get(
                "/oidc/callback?code=c&state=s", headers={"Cookie": f"{name}={cookie}"}
            )
            assert forged.status_code == 401


@pytest.mark.parametrize("key", ["issuer", "authorization_endpoint", "token_endpoint", "jwks_uri"])
async def test_metadata_that_lack_something_are_reported(
    api: Api, provider: OidcProviderServer, key: str
) -> None:
    provider.changed_metadata = {key: None}
    async with with_provider(api, provider).client(None) as browser:
        answer = await browser.get("/oidc/login")
    assert answer.status_code == 503
    assert (
        answer.json()["detail"] == f"the metadata of the provider at {provider.issuer} lack {key}"
    )


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/token", b"<html>", "the provider's answer has no tokens"),
        ("/token", b"[]", "the provider's answer has no tokens"),
        ("/token", b'{"expires_in": "soon"}', "the provider's answer has no tokens"),
        ("/keys", b"<html>", "the OpenID Connect provider does not answer"),
        ("/keys", b"{}", "the provider's keys cannot be read"),
        ("/keys", b'{"keys": null}', "the provider's keys cannot be read"),
        ("/keys", b'{"keys": []}', "the provider's keys cannot be read"),
        ("/keys", b'{"keys": [{"kty": "RSA"}]}', "the provider's keys cannot be read"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_reported_and_the_next_sign_in_succeeds(
    api: Api, provider: OidcProviderServer, path: str, body: bytes, said: str
) -> None:
    async with with_provider(api, provider).client(None) as browser:
        provider.bodies[path] = body
        with capture_logs() as logged:
            answer = await sign_in(browser)
        assert (answer.status_code, logged) == (503, [])
        assert answer.json()["detail"].startswith(said)
        provider.bodies.clear()
        assert (await sign_in(browser)).status_code == 303


async def test_over_https_the_cookie_of_the_sign_in_is_gone_at_its_end(
    api: Api, provider: OidcProviderServer
) -> None:
    proxied = with_provider(api, provider).with_settings(behind_proxy=True)
    async with proxied.client(None, **{"X-Forwarded-Proto": "https"}) as browser:
        browser.base_url = httpx.URL("https://127.0.0.1")
        done = await sign_in(browser)
    (deleted,) = [
        one
        for one in done.headers.get_list("set-cookie")
        if one.startswith("__Host-triggerer-oidc=")
    ]
    # A browser ignores a cookie whose name begins with `__Host-`, unless it has both.
    assert {"Max-Age=0", "Secure", "Path=/"} <= set(deleted.split("; "))


async def test_a_code_counts_once(api: Api, provider: OidcProviderServer) -> None:
    async with with_provider(api, provider).client(None) as browser:
        begun = await browser.get("/oidc/login")
        async with httpx.AsyncClient() as outside:
            sent = await outside.get(begun.headers["location"])
        back = httpx.URL(sent.headers["location"])
        assert (await browser.get(back.path, params=dict(back.params))).status_code == 303
        assert (await browser.get(back.path, params=dict(back.params))).status_code == 401


async def test_a_provider_that_is_away_is_reported_and_tokens_work(api: Api) -> None:
    away = api.with_settings(oidc=OidcSettings(issuer="http://127.0.0.1:9", client_id="x"))
    async with away.client(None) as browser, away.client("viewer") as program:
        answer = await browser.get("/oidc/login")
        assert answer.status_code == 503
        assert "provider does not answer" in answer.json()["detail"]
        assert (await program.get("/api/v1/dags")).status_code == 200


async def test_without_a_provider_there_is_no_such_sign_in(api: Api) -> None:
    async with api.client(None) as browser:
        assert (await browser.get("/oidc/login")).status_code == 404
