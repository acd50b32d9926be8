"""Servers that speak DynamoDB's protocol: dynoxide, which is small, and ministack, which knows the rest of AWS too."""

import os
import urllib.error
import urllib.request
from pathlib import Path

from tests.servers.process import ServerProcess, find


class Dynoxide(ServerProcess):
    """DynamoDB alone, durable in one file or in memory."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        super().__init__(folder)
        self._durable = durable

    def command(self) -> list[str]:
        file = ["--db-path", str(self.folder / f"dynoxide-{self.port}.db")] if self._durable else []
        return [find("dynoxide"), "--host", "127.0.0.1", "--port", str(self.port), *file]

    def url(self, table: str, port: int | None = None) -> str:
        return f"dynamodb://{table}?region=us-east-1&endpoint={self.endpoint(port)}"

    def endpoint(self, port: int | None = None) -> str:
        return f"http://127.0.0.1:{port or self.port}"


class Ministack(Dynoxide):
    """Many AWS services in one process, in memory. A durable one writes its data to a file when it is stopped."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        super().__init__(folder, durable=durable)

    def command(self) -> list[str]:
        return [find("ministack")]

    def environment(self) -> dict[str, str] | None:
        folder = self.folder / f"ministack-{self.port}"
        persistence = {"PERSIST_STATE": "1", "STATE_DIR": str(folder)}
        persistence |= {"S3_PERSIST": "1", "S3_DATA_DIR": str(folder / "s3")}
        address = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(self.port)}
        return {**os.environ, **address, **(persistence if self._durable else {})}

    def restart(self) -> None:
        """Stop it in order, because it loses everything when it is killed, and start it again."""
        self.stop()
        self.start()

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint()}/_ministack/health", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def reset(self) -> None:
        """Delete all data."""
        request = urllib.request.Request(f"{self.endpoint()}/_ministack/reset", method="POST")
        urllib.request.urlopen(request, timeout=10).close()
