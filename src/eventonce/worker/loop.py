"""One event loop for the async handlers of all batches, in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
_PATIENCE = 5.0  # seconds


class LoopThread:
    """Other threads hand it their batches and wait for them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="eventonce-loop", daemon=True)
        self._thread.start()

    def run(self, batch: Coroutine[Any, Any, Result]) -> Result:
        """Run it in the loop, and wait here for its end."""
        return asyncio.run_coroutine_threadsafe(batch, self._loop).result()

    def cancel(self) -> None:
        """Cancel what runs. Its claims are released."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def close(self) -> None:
        """End it. A handler that takes no notice is left behind."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        if not self._thread.is_alive() and not asyncio.all_tasks(self._loop):
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
