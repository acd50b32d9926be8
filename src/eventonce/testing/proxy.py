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
    """Listens on a free port for each port given, and passes everything on, until told otherwise.

    `cut_answers(n)`: for the next n answers, what was asked is done and the connection is cut in place of the answer.
    `delay`: milliseconds by which answers are held back. `refusing`: whether new connections are cut at once.
    `stall()`: answers are held back until `flow()`.
    """

    def __init__(self, *ports: int) -> None:
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in ports]
        self.ports: list[int] = [each.getsockname()[1] for each in self._listeners]
        self.port = self.ports[0]
        self.delay = 0
        self.refusing = False
        self._cuts = 0
        self.cut = 0  # how many answers were cut
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._open: set[socket.socket] = set()
        self._servers = list(ports)
        for at, listener in enumerate(self._listeners):
            threading.Thread(target=self._accept, args=(listener, at), daemon=True).start()

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        with self._lock:
            return len(self._open) // 2  # each with its own connection to the server

    def lead_to(self, port: int) -> None:
        """New connections go there from now on, as when a name has got another address."""
        self._servers = [port] * len(self._servers)

    def cut_answers(self, count: int = 1) -> None:
        with self._lock:
            self._cuts = count

    def stall(self) -> None:
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def cut_all(self) -> None:
        """Cut every open connection."""
        with self._lock:
            for each in self._open:
                _shut(each)

    def _accept(self, listener: socket.socket, at: int) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = listener.accept()
                self._connect(client, self._servers[at])

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
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {client, server}
            if self.refusing:  # since a moment ago, and all that was open then has been cut
                _shut(client)
        threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
        threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True).start()

    def _pass_on(self, here: socket.socket, there: socket.socket, answers: bool) -> None:
        try:
            while data := here.recv(_CHUNK):
                if answers and self._hold_back():
                    break
                there.sendall(data)
        except OSError:  # either end has gone
            pass
        finally:
            _shut(here)
            _shut(there)
            with self._lock:
                self._open.discard(here)
            here.close()

    def _hold_back(self) -> bool:
        """Wait as told; whether this answer is to be cut."""
        self._flowing.wait()
        if self.delay:
            time.sleep(self.delay / 1000)
        with self._lock:
            if not self._cuts:
                return False
            self._cuts -= 1
            self.cut += 1
            return True

    def close(self) -> None:
        for listener in self._listeners:
            _shut(listener)
            listener.close()
        self.flow()
        self.cut_all()


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
