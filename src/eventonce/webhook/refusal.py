"""A request that is not taken, and why."""

RETRY_AFTER = "5"  # seconds


class Refusal(Exception):
    """A request that is not taken: the status, why, and headers that say more."""

    def __init__(self, status: int, why: str, **headers: str) -> None:
        super().__init__(why)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if status == 503:
            self.headers["retry-after"] = RETRY_AFTER
