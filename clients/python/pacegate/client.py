"""Checks requests over HTTP."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Literal, Mapping, Optional, Sequence, Union

from .deny_cache import DenyCache
from .transport import Transport

FailureMode = Literal["open", "closed"]

MAX_THREADS = 32


@dataclass(frozen=True)
class Decision:
    """The answer to a check. Times are in seconds."""

    allowed: bool
    policy: Optional[str]
    """The policy that decided; `None` if no policy matches the request."""
    limit: Optional[str]
    """The limit that decided; the tightest if several apply."""
    remaining: Optional[int]
    """Units that would be admitted now."""
    retry_after: Optional[float]
    """Time until the same request would be allowed. `None` if it is allowed, or never will be."""
    reset_after: float
    """Time until the usage is back to zero."""
    source: str
    """`store`, `deny-cache`, `fallback`, `blocked`, `unlimited`, `lease` or `overflow`."""
    shadow_denied: bool
    """True if a policy in shadow mode would have denied the request."""
    degraded: bool
    """True if a failure mode decided, on the server or in this client."""
    revision: int
    """Number of the server's configuration; 0 if this client decided."""


class PacegateError(Exception):
    """The server rejected the request, for example because of an invalid limit or API key."""

    def __init__(self, status: int, type: Optional[str], detail: Optional[str]) -> None:
        super().__init__(f"pacegate rejected the request with status {status}: {detail or 'no details'}")
        self.status = status
        self.type = type
        self.detail = detail


class Pacegate:
    """A client of one Pacegate server. Create one and share it between threads and tasks.

    `failure` is the decision when the server does not answer: `open` allows the request, `closed` denies it. `deadline`
    and `max_denial_age` are in seconds. A `max_denial_age` of 0 turns the deny cache off. `on_unavailable` is called
    with the reason when the failure mode decides. Close the client with `close` or `with` if the program goes on
    without it.
    """

    def __init__(
        self,
        url: str,
        *,
        failure: FailureMode,
        api_key: Optional[str] = None,
        deadline: float = 0.5,
        max_denials: int = 10_000,
        max_denial_age: float = 10.0,
        on_unavailable: Optional[Callable[[Exception], None]] = None,
        send: Optional[Callable[[bytes], tuple[int, bytes]]] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if failure not in ("open", "closed"):
            raise ValueError(f"invalid failure mode `{failure}`: expected open or closed")
        self._failure = failure
        self._deadline = deadline
        self._denials = DenyCache(max_denials, max_denial_age)
        self._on_unavailable = on_unavailable
        self._transport = None if send else Transport(url, api_key, deadline)
        self._send = send or self._transport.post
        self._clock = clock
        self._start_threads()

    def __enter__(self) -> Pacegate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Pacegate:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes idle connections and ends the threads of `check_async`, without waiting for checks that still run."""
        self._threads.shutdown(wait=False)
        if self._transport is not None:
            self._transport.close()

    def check(
        self,
        *,
        key: Optional[str] = None,
        limit: Union[str, Sequence[str], None] = None,
        attributes: Optional[Mapping[str, str]] = None,
        domain: Optional[str] = None,
        cost: Optional[int] = None,
        id: Optional[str] = None,
    ) -> Decision:
        """Checks and charges a request: a `key` with its `limit`, or `attributes` for the policies of the server.

        A denial is a value. If the server does not answer within the deadline, the failure mode decides. Raises
        `PacegateError` if the server rejects the request.
        """
        body = _encode(key=key, limit=limit, attributes=attributes, domain=domain, cost=cost, id=id)
        return self._cached(body, id) or self._check(body, id)

    async def check_async(self, **request: Any) -> Decision:
        """Does the same as `check` without blocking the event loop. A cached denial uses no thread."""
        body, id = _encode(**request), request.get("id")
        cached = self._cached(body, id)
        if cached is not None:
            return cached
        if self._process != os.getpid():
            # A child process has no threads of its parent.
            self._start_threads()
        run = contextvars.copy_context().run
        # Not the threads of the event loop: other work could keep all of them busy, and the failure mode would decide.
        checked = asyncio.get_running_loop().run_in_executor(self._threads, run, self._check, body, id)
        try:
            return await asyncio.wait_for(checked, self._deadline)
        except asyncio.TimeoutError as error:
            return self._unavailable(error)

    def _start_threads(self) -> None:
        self._process = os.getpid()
        self._threads = ThreadPoolExecutor(MAX_THREADS, "pacegate")

    def _cached(self, body: str, id: Optional[str]) -> Optional[Decision]:
        return None if id is not None else self._denials.get(body, self._clock())

    def _check(self, body: str, id: Optional[str]) -> Decision:
        sent_at = self._clock()
        try:
            decision = _decode(*self._send(body.encode()))
        except PacegateError:
            raise
        except Exception as error:
            return self._unavailable(error)
        if id is None:
            self._denials.add(body, decision, sent_at, self._clock())
        return decision

    def _unavailable(self, error: Exception) -> Decision:
        if self._on_unavailable is not None:
            self._on_unavailable(error)
        allowed = self._failure == "open"
        retry_after = None if allowed else 1.0
        return Decision(allowed, None, None, None, retry_after, 0.0, "fallback", False, True, 0)


def _encode(**request: Any) -> str:
    """Encodes a request. Equal requests have equal texts, because members are sorted."""
    return json.dumps({name: value for name, value in request.items() if value is not None}, sort_keys=True)


def _decode(status: int, body: bytes) -> Decision:
    answer = _parse(body)
    if 400 <= status < 500 and status != 429:
        raise PacegateError(status, answer.get("type"), answer.get("detail"))
    if status not in (200, 429) or not isinstance(answer.get("allowed"), bool):
        raise ConnectionError(f"the server answered {status} without a decision")
    return Decision(
        allowed=answer["allowed"],
        policy=answer.get("policy"),
        limit=answer.get("limit"),
        remaining=answer.get("remaining"),
        retry_after=answer.get("retry_after"),
        reset_after=answer.get("reset_after", 0.0),
        source=answer["source"],
        shadow_denied=answer["shadow_denied"],
        degraded=answer["degraded"],
        revision=answer["revision"],
    )


def _parse(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
