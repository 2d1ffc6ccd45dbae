"""Calls the HTTP API of a server."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Literal, Mapping, Optional, Sequence, Union

from .deny_cache import DenyCache
from .transport import Transport

FailureMode = Literal["open", "closed"]

MAX_THREADS = 32


@dataclass(frozen=True)
class Decision:
    """The answer to a check, `reserve` or `acquire`. Times are in seconds."""

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
    granted: Optional[int] = None
    """Units that a check with `up_to` has taken; `None` for other calls."""
    permit: Optional[str] = None
    """The permit of `acquire`; `None` if no units are held."""
    reservation: Optional[str] = None
    """The reservation of `reserve`; `None` if the request was denied, or the failure mode decided."""


class PacegateError(Exception):
    """The server rejected the request, for example because of an invalid limit or API key."""

    def __init__(self, status: int, type: Optional[str], detail: Optional[str]) -> None:
        super().__init__(f"pacegate rejected the request with status {status}: {detail or 'no details'}")
        self.status = status
        self.type = type
        self.detail = detail


class PacegateUnavailable(Exception):
    """The server did not answer `settle`, `cancel`, `renew`, `release` or `refund` within the deadline."""


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
        send: Optional[Callable[[str, bytes], tuple[int, bytes]]] = None,
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
        """Closes idle connections and ends the threads of asynchronous calls, without waiting for calls that still run."""
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
        spent: Optional[bool] = None,
        up_to: Optional[bool] = None,
        id: Optional[str] = None,
    ) -> Decision:
        """Checks and charges a request: a `key` with its `limit`, or `attributes` for the policies of the server.

        `spent` records units that are already spent, in full. `up_to` takes as many units as there are, up to `cost`;
        the decision has their number in `granted`.

        A denial is a value. If the server does not answer within the deadline, the failure mode decides. Raises
        `PacegateError` if the server rejects the request.
        """
        request = _members(
            key=key, limit=limit, attributes=attributes, domain=domain, cost=cost, spent=spent, up_to=up_to, id=id
        )
        return self._cached(request) or self._decide("check", request)

    async def check_async(self, **request: Any) -> Decision:
        """Does the same as `check` without blocking the event loop. A cached denial uses no thread."""
        request = _members(**request)
        cached = self._cached(request)
        return cached if cached is not None else await self._decide_async("check", request)

    def reserve(self, *, ttl: Optional[int] = None, **request: Any) -> Decision:
        """Charges an estimate, `cost`. End the `reservation` of the decision with `settle` or `cancel`.

        The arguments are those of `check` without `spent`, `up_to` and `id`. After `ttl` seconds (default: 300) the
        reservation ends, and the estimate stays charged.
        """
        return self._decide("reserve", _members(ttl=ttl, **request))

    async def reserve_async(self, *, ttl: Optional[int] = None, **request: Any) -> Decision:
        """Does the same as `reserve` without blocking the event loop."""
        return await self._decide_async("reserve", _members(ttl=ttl, **request))

    def settle(self, reservation: Optional[str], used: int) -> bool:
        """Ends a reservation with the units that were used.

        Returns false if it was not open, or is `None`. Raises `PacegateUnavailable` if the server does not answer;
        repeat the call, which counts once.
        """
        return reservation is not None and self._end("settle", reservation=reservation, used=used)

    async def settle_async(self, reservation: Optional[str], used: int) -> bool:
        """Does the same as `settle` without blocking the event loop."""
        return await self._in_thread(self.settle, reservation, used)

    def cancel(self, reservation: Optional[str]) -> bool:
        """Ends a reservation of which nothing was used. Returns and raises like `settle`."""
        return reservation is not None and self._end("cancel", reservation=reservation)

    async def cancel_async(self, reservation: Optional[str]) -> bool:
        """Does the same as `cancel` without blocking the event loop."""
        return await self._in_thread(self.cancel, reservation)

    def acquire(self, **request: Any) -> Decision:
        """Takes a unit of a concurrency limit. End the `permit` of the decision with `release`.

        The arguments are those of `check` without `spent`, `up_to` and `id`.
        """
        return self._decide("acquire", _members(**request))

    async def acquire_async(self, **request: Any) -> Decision:
        """Does the same as `acquire` without blocking the event loop."""
        return await self._decide_async("acquire", _members(**request))

    def renew(self, permit: Optional[str], **request: Any) -> bool:
        """Restarts the period of a permit of this request.

        Returns false if the permit has ended, and true for `None`, which holds nothing. Raises `PacegateUnavailable` if
        the server does not answer.
        """
        if permit is None:
            return True
        try:
            self._post("renew", _members(permit=permit, **request))
        except PacegateError as error:
            if error.status != 409:
                raise
            return False
        return True

    async def renew_async(self, permit: Optional[str], **request: Any) -> bool:
        """Does the same as `renew` without blocking the event loop."""
        return await self._in_thread(partial(self.renew, permit, **request))

    def release(self, permit: Optional[str], **request: Any) -> None:
        """Ends a permit of this request; `None` holds nothing. Raises `PacegateUnavailable` if the server does not answer."""
        if permit is not None:
            self._post("release", _members(permit=permit, **request))

    async def release_async(self, permit: Optional[str], **request: Any) -> None:
        """Does the same as `release` without blocking the event loop."""
        await self._in_thread(partial(self.release, permit, **request))

    def refund(self, **request: Any) -> int:
        """Returns `cost` units of a request. Needs an API key with the scope `admin`.

        Returns the number of limits. Raises `PacegateUnavailable` if the server does not answer: then the units may have
        been returned or not.
        """
        return self._post("refund", _members(**request))["limits"]

    async def refund_async(self, **request: Any) -> int:
        """Does the same as `refund` without blocking the event loop."""
        return await self._in_thread(partial(self.refund, **request))

    async def _decide_async(self, call: str, request: dict[str, Any]) -> Decision:
        try:
            return await self._in_thread(self._decide, call, request)
        except PacegateUnavailable as error:
            return self._unavailable(error, request)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._process != os.getpid():
            # A child process has no threads of its parent.
            self._start_threads()
        run = contextvars.copy_context().run
        # Not the threads of the event loop: other work could keep all of them busy, and the failure mode would decide.
        running = asyncio.get_running_loop().run_in_executor(self._threads, run, function, *arguments)
        try:
            return await asyncio.wait_for(running, self._deadline)
        except asyncio.TimeoutError as error:
            raise PacegateUnavailable("deadline exceeded") from error

    def _start_threads(self) -> None:
        self._process = os.getpid()
        self._threads = ThreadPoolExecutor(MAX_THREADS, "pacegate")

    def _cached(self, request: dict[str, Any]) -> Optional[Decision]:
        return self._denials.get(_encode(request), self._clock()) if _may_be_cached("check", request) else None

    def _decide(self, call: str, request: dict[str, Any]) -> Decision:
        body = _encode(request)
        sent_at = self._clock()
        try:
            decision = _decision(*self._send(call, body.encode()))
        except PacegateError:
            raise
        except Exception as error:
            return self._unavailable(error, request)
        if _may_be_cached(call, request):
            self._denials.add(body, decision, sent_at, self._clock())
        return decision

    def _unavailable(self, error: Exception, request: dict[str, Any]) -> Decision:
        if self._on_unavailable is not None:
            self._on_unavailable(error)
        allowed = self._failure == "open"
        retry_after = None if allowed else 1.0
        granted = (request.get("cost", 1) if allowed else 0) if request.get("up_to") else None
        return Decision(allowed, None, None, None, retry_after, 0.0, "fallback", False, True, 0, granted)

    def _end(self, call: str, **members: Any) -> bool:
        return self._post(call, members).get("settled") is True

    def _post(self, call: str, members: dict[str, Any]) -> dict[str, Any]:
        try:
            status, body = self._send(call, _encode(members).encode())
        except Exception as error:
            raise PacegateUnavailable(str(error)) from error
        answer = _parse(body)
        if status == 200:
            return answer
        if 400 <= status < 500:
            raise PacegateError(status, answer.get("type"), answer.get("detail"))
        raise PacegateUnavailable(f"the server answered {status}")


def _members(**request: Any) -> dict[str, Any]:
    return {name: value for name, value in request.items() if value is not None}


def _may_be_cached(call: str, request: dict[str, Any]) -> bool:
    """Returns true for checks that can be answered without the server.

    Units that are already spent must be recorded. A settled reservation ends the denial of another one early.
    """
    return call == "check" and "id" not in request and not request.get("spent")


def _encode(members: dict[str, Any]) -> str:
    """Encodes a request. Equal requests have equal texts, because members are sorted."""
    return json.dumps(members, sort_keys=True)


def _decision(status: int, body: bytes) -> Decision:
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
        granted=answer.get("granted"),
        permit=answer.get("permit"),
        reservation=answer.get("reservation"),
    )


def _parse(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
