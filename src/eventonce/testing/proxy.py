"""A proxy between a store and its server that loses answers, holds them back, and cuts connections."""

import contextlib
import socket
import threading
import time

from eventonce.closing import Closing

_CHUNK = 65_536


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class FaultProxy(Closing):
    """A proxy with a free port for each server port. It passes everything on, except for the faults that are set.

    `cut_answers(n)`: the next n requests are done, but the connection is cut instead of passing on the answer.
    `delay`: milliseconds by which answers are delayed. `refusing`: whether new connections are cut at once.
    `stall()`: answers wait until `flow()`.
    """

    def __init__(self, *ports: int) -> None:
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in ports]
        self.ports: list[int] = [listener.getsockname()[1] for listener in self._listeners]
        self.port = self.ports[0]
        self.delay = 0
        self.refusing = False
        self._answers_to_cut = 0
        self.cut = 0  # the number of answers that were cut
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._open: set[socket.socket] = set()
        self._servers = list(ports)
        for index, listener in enumerate(self._listeners):
            threading.Thread(target=self._accept, args=(listener, index), daemon=True).start()

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        with self._lock:
            return len(self._open) // 2  # each client has its own connection to the server

    def lead_to(self, port: int) -> None:
        """Send new connections to another port, as when the address of a name has changed."""
        self._servers = [port] * len(self._servers)

    def cut_answers(self, count: int = 1) -> None:
        with self._lock:
            self._answers_to_cut = count

    def stall(self) -> None:
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def cut_all(self) -> None:
        """Cut every open connection."""
        with self._lock:
            for connection in self._open:
                _shut(connection)

    def _accept(self, listener: socket.socket, index: int) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = listener.accept()
                self._connect(client, self._servers[index])

    def _connect(self, client: socket.socket, port: int) -> None:
        if self.refusing:
            _shut(client)
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError:
            client.close()
            return
        for connection in (client, server):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {client, server}
            if self.refusing:  # since a moment ago, when all open connections were cut
                _shut(client)
        threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
        threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, from_server: bool) -> None:
        try:
            while data := source.recv(_CHUNK):
                if from_server and self._delay_answer():
                    break
                target.sendall(data)
        except OSError:  # either end has gone
            pass
        finally:
            _shut(source)
            _shut(target)
            with self._lock:
                self._open.discard(source)
            source.close()

    def _delay_answer(self) -> bool:
        """Wait as long as answers are delayed. Return whether to cut this one."""
        self._flowing.wait()
        if self.delay:
            time.sleep(self.delay / 1000)
        with self._lock:
            if not self._answers_to_cut:
                return False
            self._answers_to_cut -= 1
            self.cut += 1
            return True

    def close(self) -> None:
        for listener in self._listeners:
            _shut(listener)
            listener.close()
        self.flow()
        self.cut_all()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
