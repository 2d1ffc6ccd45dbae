"""Middleware for ASGI applications: FastAPI, Starlette, Quart, Litestar."""

from __future__ import annotations

import json
from typing import Any, Awaitable, Callable, MutableMapping, Optional
from urllib.parse import quote

from .client import Pacegate
from .http import MAX_PATH_BYTES, rate_limit_headers, request_attributes

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RateLimit:
    """Answers denied requests with 429, `Retry-After` and `RateLimit`.

    `request` returns the arguments of `Pacegate.check` for an ASGI scope, or `None` to skip the check. Default: the
    attributes `ip`, `method` and `path`, in this `domain`.
    """

    def __init__(
        self,
        app: App,
        *,
        client: Pacegate,
        domain: Optional[str] = None,
        request: Optional[Callable[[Scope], Optional[dict[str, Any]]]] = None,
    ) -> None:
        self._app = app
        self._client = client
        self._request = request or (lambda scope: _attributes(scope, domain))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if len(_path(scope)) > MAX_PATH_BYTES:
            return await _answer(send, 414, "path is too long", [])
        check = self._request(scope)
        if check is None:
            return await self._app(scope, receive, send)
        decision = await self._client.check_async(**check)
        headers = [(name.lower().encode(), value.encode()) for name, value in rate_limit_headers(decision).items()]
        if not decision.allowed:
            return await _answer(send, 429, "too many requests", headers)

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *headers]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _attributes(scope: Scope, domain: Optional[str]) -> dict[str, Any]:
    address = (scope.get("client") or ("", 0))[0]
    return request_attributes(address, scope["method"], _path(scope), domain)


def _path(scope: Scope) -> str:
    """Returns the path with its percent-encodings, because the server decodes them."""
    raw: Optional[bytes] = scope.get("raw_path")
    return quote(scope["path"]) if raw is None else raw.split(b"?")[0].decode("latin-1")


async def _answer(send: Send, status: int, error: str, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [(b"content-type", b"application/json"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})
