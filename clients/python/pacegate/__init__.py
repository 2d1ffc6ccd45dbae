"""A client for the Pacegate rate limiter: `Pacegate` for calls, `pacegate.asgi` and `pacegate.django` for servers."""

from .client import Decision, Pacegate, PacegateError, PacegateUnavailable
from .http import client_network, rate_limit_headers

__all__ = ["Decision", "Pacegate", "PacegateError", "PacegateUnavailable", "client_network", "rate_limit_headers"]
