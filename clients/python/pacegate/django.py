"""Middleware for Django. Settings: `PACEGATE_CLIENT`, and optionally `PACEGATE_DOMAIN` and `PACEGATE_REQUEST`."""

from __future__ import annotations

from typing import Any, Callable, Optional

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.encoding import escape_uri_path

from .client import Pacegate
from .http import MAX_PATH_BYTES, rate_limit_headers, request_attributes


class RateLimitMiddleware:
    """Answers denied requests with 429, `Retry-After` and `RateLimit`.

    The setting `PACEGATE_REQUEST` is a function that returns the arguments of `Pacegate.check` for a request, or `None`
    to skip the check. Default: the attributes `ip`, `method` and `path`, in the domain `PACEGATE_DOMAIN`.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response
        self._client: Pacegate = settings.PACEGATE_CLIENT
        self._request = getattr(settings, "PACEGATE_REQUEST", _attributes)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if len(escape_uri_path(request.path)) > MAX_PATH_BYTES:
            return JsonResponse({"error": "path is too long"}, status=414)
        check: Optional[dict[str, Any]] = self._request(request)
        if check is None:
            return self._get_response(request)
        decision = self._client.check(**check)
        if decision.allowed:
            response = self._get_response(request)
        else:
            response = JsonResponse({"error": "too many requests"}, status=429)
        for name, value in rate_limit_headers(decision).items():
            response[name] = value
        return response


def _attributes(request: HttpRequest) -> dict[str, Any]:
    domain = getattr(settings, "PACEGATE_DOMAIN", None)
    # Django has decoded the path. The server decodes it too, so it must be encoded again.
    path = escape_uri_path(request.path)
    return request_attributes(request.META.get("REMOTE_ADDR", ""), request.method or "GET", path, domain)
