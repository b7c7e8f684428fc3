"""Messages between the processes of one router: JSON, one a line, over a socket pair.

Room: gateway. For processes that run a loop; whoever holds the other end sees it close when this process dies.
"""

import json
import socket
from collections.abc import Callable
from typing import Any

from lib.net.epoll import IN, OUT, Loop


class Channel:
    """One end. `on_message` gets each message, `on_close` is called once when the other end has gone."""

    def __init__(self, loop: Loop, sock: socket.socket, on_message: Callable[[dict[str, Any]], object],
                 on_close: Callable[[], object]) -> None:
        self._loop, self._sock, self._on_message, self._on_close = loop, sock, on_message, on_close
        self._in, self._out = b"", bytearray()
        sock.setblocking(False)
        loop.register(sock.fileno(), self._ready, IN)

    def send(self, message: dict[str, Any]) -> None:
        """Send, now or when there is room."""
        self._out += json.dumps(message).encode() + b"\n"
        self._flush()

    def close(self) -> None:
        """Close our end. Closing twice is no matter."""
        if self._sock.fileno() >= 0:
            self._loop.unregister(self._sock.fileno())
            self._sock.close()

    def disown(self) -> None:
        """After a fork, in the child: let go of the parent's end without touching the parent's loop."""
        self._sock.close()

    def _ready(self, events: int) -> None:
        if events & OUT:
            self._flush()
        try:
            data = self._sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._on_close()
            return
        *lines, self._in = (self._in + data).split(b"\n")
        for line in lines:
            self._on_message(json.loads(line))

    def _flush(self) -> None:
        if self._sock.fileno() < 0:
            return
        try:
            del self._out[:self._sock.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:                    # reading tells that it has gone
            self._out.clear()
        self._loop.modify(self._sock.fileno(), IN | OUT if self._out else IN)
