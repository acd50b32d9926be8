"""The S3 store keeps the shipped contract and survives the shipped faults, on a server that enforces its conditions."""

import functools
import threading
import uuid
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from eventonce import open_store
from eventonce.ports import Store
from eventonce.testing import Features, StoreContract, StoreFaults
from eventonce.testing.faults import StoreAt
from tests.servers import Ministack

WRITERS, NAMES = 8, 40


def client_of(server: Ministack) -> Any:
    return boto3.client(
        "s3", endpoint_url=server.endpoint(), region_name="us-east-1", config=Config(max_pool_connections=WRITERS)
    )


def bucket_at(server: Ministack) -> str:
    """Create a bucket for claims."""
    bucket, client = f"claims-{uuid.uuid4().hex[:12]}", client_of(server)
    client.create_bucket(Bucket=bucket)
    client.close()
    return bucket


def url_of(server: Ministack, bucket: str, port: int | None = None) -> str:
    return f"s3://{bucket}/eventonce?region=us-east-1&endpoint={server.endpoint(port)}"


class TestTheServerEnforcesConditions:
    """Raw writers race for the same objects. Without this the contract on this server would prove nothing."""

    @pytest.fixture
    def bucket(self, ministack: Ministack) -> str:
        return bucket_at(ministack)

    def test_one_writer_creates_an_object(self, ministack: Ministack, bucket: str) -> None:
        winners = _race(ministack, bucket, lambda name: {"IfNoneMatch": "*"})
        assert winners == [1] * NAMES

    def test_one_writer_changes_an_object(self, ministack: Ministack, bucket: str) -> None:
        client = client_of(ministack)
        etags = {
            str(name): client.put_object(Bucket=bucket, Key=str(name), Body=b"old")["ETag"] for name in range(NAMES)
        }
        assert _race(ministack, bucket, lambda name: {"IfMatch": etags[name]}) == [1] * NAMES
        client.close()

    def test_a_changed_object_is_not_deleted(self, ministack: Ministack, bucket: str) -> None:
        client = client_of(ministack)
        etag = client.put_object(Bucket=bucket, Key="a", Body=b"old")["ETag"]
        client.put_object(Bucket=bucket, Key="a", Body=b"new")
        with pytest.raises(ClientError, match="PreconditionFailed"):
            client.delete_object(Bucket=bucket, Key="a", IfMatch=etag)
        client.close()


def _race(server: Ministack, bucket: str, condition: Callable[[str], dict[str, str]]) -> list[int]:
    """Return how many of the writers that all write these objects with a condition were successful with each."""
    client, together = client_of(server), threading.Barrier(WRITERS)
    winners: list[str] = []

    def write(writer: int) -> None:
        together.wait()
        for name in map(str, range(NAMES)):
            try:
                client.put_object(Bucket=bucket, Key=name, Body=f"writer {writer}".encode(), **condition(name))
            except ClientError as error:
                assert error.response["Error"]["Code"] == "PreconditionFailed"  # noqa: PT017
            else:
                winners.append(name)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    client.close()
    return [winners.count(str(name)) for name in range(NAMES)]


class TestS3(StoreContract):
    features = Features(processes=True, durable=True)

    @pytest.fixture
    def opener(self, ministack: Ministack) -> Callable[[], Store]:
        return functools.partial(open_store, url_of(ministack, bucket_at(ministack)))

    # Thousands of calls, because each key is an object.

    @pytest.mark.long
    def test_a_large_batch(self, store: Store) -> None:
        super().test_a_large_batch(store)

    @pytest.mark.long
    def test_threads_that_race_for_keys_have_one_winner_each(self, store: Store) -> None:
        super().test_threads_that_race_for_keys_have_one_winner_each(store)


@pytest.mark.long
class TestS3UnderFaults(StoreFaults):
    """Ministack loses its data when it is killed, so it is restarted in order."""

    @pytest.fixture
    def server(self, durable_ministack: Ministack) -> Ministack:
        return durable_ministack

    @pytest.fixture
    def opener(self, server: Ministack) -> StoreAt:
        bucket = bucket_at(server)
        return lambda port, clock, timeout: open_store(f"{url_of(server, bucket, port)}&timeout={timeout}", clock)
