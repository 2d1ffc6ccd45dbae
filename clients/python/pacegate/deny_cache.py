"""Denials that still hold."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from .client import Decision


@dataclass(frozen=True)
class _Entry:
    decision: Decision
    received_at: float
    valid_until: float
    """The denial surely holds until here."""


class DenyCache:
    """A bounded map of denials by request, in the order of insertion.

    The server decided after the request was sent and before its answer arrived. So a denial holds at least until the
    time of sending plus `retry_after`, and the request is admitted at the latest at the time of arrival plus
    `retry_after`.
    """

    def __init__(self, max_entries: int, max_age: float) -> None:
        self._max_entries = max_entries
        self._max_age = max_age
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, request: str, now: float) -> Optional[Decision]:
        """Returns the denial of this request, with its times reduced by its age."""
        with self._lock:
            entry = self._entries.get(request)
            if entry is None:
                return None
            if now >= entry.valid_until:
                del self._entries[request]
                return None
        passed = now - entry.received_at
        retry_after = entry.decision.retry_after
        return replace(
            entry.decision,
            retry_after=None if retry_after is None else retry_after - passed,
            reset_after=max(0.0, entry.decision.reset_after - passed),
            source="deny-cache",
        )

    def add(self, request: str, decision: Decision, sent_at: float, received_at: float) -> None:
        """Adds a denial, unless a released permit or a recovered store may end it early."""
        if decision.allowed or decision.degraded or (decision.limit or "").endswith("concurrency"):
            return
        retry_after = math.inf if decision.retry_after is None else decision.retry_after
        valid_until = sent_at + min(self._max_age, retry_after)
        if valid_until <= received_at or self._max_entries < 1:
            return
        with self._lock:
            self._entries.pop(request, None)
            if len(self._entries) >= self._max_entries:
                self._entries.popitem(last=False)
            self._entries[request] = _Entry(decision, received_at, valid_until)
