"""Parts that the middleware of all frameworks shares."""

from __future__ import annotations

import ipaddress
import math
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from .client import Decision

MAX_PATH_BYTES = 1024
"""Longest path that the server accepts as an attribute."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def rate_limit_headers(decision: Decision) -> dict[str, str]:
    """Returns the response headers for a decision: `RateLimit`, and `Retry-After` if the request may be retried."""
    headers = {}
    seconds = decision.reset_after if decision.allowed else decision.retry_after
    whole = None if seconds is None else max(1, math.ceil(seconds))
    if decision.policy is not None and decision.remaining is not None:
        time = "" if whole is None else f";t={whole}"
        headers["RateLimit"] = f'"{decision.policy}";r={decision.remaining}{time}'
    if not decision.allowed and whole is not None:
        headers["Retry-After"] = str(whole)
    return headers


def client_network(address: str) -> str:
    """Returns the address to count a client by.

    IPv4 addresses, also those written as IPv6, stay whole. Of an IPv6 address only the first 64 bits count, because one
    client usually has the whole network.
    """
    try:
        ip = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    if ip in _NAT64:
        return str(ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF))
    return str(ipaddress.ip_network((ip, 64), strict=False).network_address)


def request_attributes(address: str, method: str, path: str, domain: Optional[str]) -> dict[str, Any]:
    """Returns the check for a request: by address, method and path."""
    attributes = {"ip": client_network(address), "method": method, "path": path}
    return {"attributes": attributes, "domain": domain}
