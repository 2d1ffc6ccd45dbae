"""A client for the Pacegate rate limiter: `Pacegate` for checks, `pacegate.asgi` and `pacegate.django` for servers."""

from .client import Decision, Pacegate, PacegateError
from .http import client_network, rate_limit_headers

__all__ = ["Decision", "Pacegate", "PacegateError", "client_network", "rate_limit_headers"]
