"""HTTP with one deadline for the whole exchange."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from queue import Empty, Full, LifoQueue
from typing import Any, Optional, Union
from urllib.parse import urlsplit

MAX_IDLE_CONNECTIONS = 32
MAX_BODY_BYTES = 64 * 1024


class Transport:
    """Sends calls over connections that are kept open."""

    def __init__(self, url: str, api_key: Optional[str], deadline: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"invalid URL `{url}`: expected http://HOST:PORT or https://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = f"{parts.path.rstrip('/')}/v1"
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._deadline = deadline
        self._idle: LifoQueue[_Connection] = LifoQueue(MAX_IDLE_CONNECTIONS)

    def post(self, call: str, body: bytes) -> tuple[int, bytes]:
        """Sends a body to an endpoint such as `check`, and returns the status and the body of the answer."""
        expires = time.monotonic() + self._deadline
        connection = self._connection()
        try:
            connection.expires = expires
            connection.request("POST", f"{self._path}/{call}", body, self._headers)
            response = connection.getresponse()
            answer = response.read(MAX_BODY_BYTES + 1)
            if len(answer) > MAX_BODY_BYTES:
                raise ConnectionError(f"the answer exceeds {MAX_BODY_BYTES} bytes")
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._keep(connection)
        return response.status, answer

    def close(self) -> None:
        """Closes the idle connections."""
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return

    def _connection(self) -> _Connection:
        """Returns an idle connection that the server has not closed, or a new one."""
        while True:
            try:
                connection = self._idle.get_nowait()
            except Empty:
                return _Connection(self._host, self._port, self._tls)
            if connection.is_quiet():
                return connection
            connection.close()

    def _keep(self, connection: _Connection) -> None:
        try:
            self._idle.put_nowait(connection)
        except Full:
            connection.close()


class _Connection(http.client.HTTPConnection):
    """A connection whose operations all end at `expires`."""

    def __init__(self, host: str, port: int, tls: Optional[ssl.SSLContext]) -> None:
        super().__init__(host, port)
        self._tls = tls
        self.expires = 0.0

    def connect(self) -> None:
        plain = self._connect_to_any(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(self.remaining())
        stream = self._tls.wrap_socket(plain, server_hostname=self.host) if self._tls else plain
        self.sock = _DeadlineSocket(stream, self)

    def _connect_to_any(self, found: list[tuple[Any, ...]]) -> socket.socket:
        """Tries the addresses in order. Each gets an equal part of the remaining time."""
        failure: OSError = OSError("the host name has no addresses")
        for place, (family, kind, protocol, _, address) in enumerate(found):
            time_left = self.remaining()
            plain = socket.socket(family, kind, protocol)
            try:
                plain.settimeout(time_left / (len(found) - place))
                plain.connect(address)
                return plain
            except OSError as error:
                plain.close()
                failure = error
        raise failure

    def remaining(self) -> float:
        """Returns the time until the deadline. Raises `TimeoutError` after it."""
        remaining = self.expires - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("deadline exceeded")
        return remaining

    def is_quiet(self) -> bool:
        """Returns false if the server has closed the connection or sent something unexpected."""
        try:
            self.sock.stream.settimeout(0)
            self.sock.stream.recv(1)
            return False
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False


class _DeadlineSocket:
    """The part of a socket that `http.client` uses, with the deadline of its connection."""

    def __init__(self, stream: Union[socket.socket, ssl.SSLSocket], connection: _Connection) -> None:
        self.stream = stream
        self._connection = connection

    def sendall(self, data: bytes) -> None:
        self.stream.settimeout(self._connection.remaining())
        self.stream.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def receive_into(self, buffer: memoryview) -> int:
        self.stream.settimeout(self._connection.remaining())
        return self.stream.recv_into(buffer)

    def close(self) -> None:
        self.stream.close()


class _Reader(io.RawIOBase):
    """Reads a response. Closing it leaves the connection open."""

    def __init__(self, source: _DeadlineSocket) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        return self._source.receive_into(buffer)
