"""TLS and passwords on real servers with a certificate."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from eventonce import StoreError, open_store
from eventonce.testing.contract import claim, keys
from eventonce.testing.proxy import free_port
from tests.conftest import running
from tests.missing import need
from tests.servers import Postgres, Redis

SECRET = "hunter2"


class Pair(NamedTuple):
    """Create a certificate for this machine, and its key."""

    certificate: Path
    key: Path


def make_pair(folder: Path, name: str) -> Pair:
    need("openssl")
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    files = ["-out", str(pair.certificate), "-keyout", str(pair.key)]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names, *files]
    subprocess.run(make, check=True, capture_output=True)
    return pair


@pytest.fixture(scope="module")
def pair(servers: Path) -> Pair:
    return make_pair(servers, "server")


@pytest.fixture(scope="module")
def stranger(servers: Path) -> Pair:
    return make_pair(servers, "stranger")


@pytest.fixture(scope="module")
def postgres(servers: Path, pair: Pair) -> Iterator[Postgres]:
    """A PostgreSQL that requires TLS from everyone, and a password from everyone but its owner."""
    key = servers / "postgres.key"
    shutil.copy(pair.key, key)
    key.chmod(0o600)
    rules = servers / "pg_hba_tls.conf"
    rules.write_text("hostssl all postgres 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n")
    rules.chmod(0o644)
    settings = ("ssl=on", f"ssl_cert_file={pair.certificate}", f"ssl_key_file={key}", f"hba_file={rules}")
    made = Postgres(servers, *settings)
    if user := made.user():
        shutil.chown(key, user)
    for server in running(lambda: made):
        with psycopg.connect(f"{server.url()}?sslmode=require", autocommit=True) as connection:
            connection.execute(f"CREATE ROLE worker LOGIN PASSWORD '{SECRET}'")
            connection.execute("GRANT ALL ON SCHEMA public TO worker")
        yield server


class TlsRedis(Redis):
    """A Redis with a TLS port besides its plain one, which requires a password on both."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        self.tls_port = free_port()
        files = ["--tls-cert-file", str(pair.certificate), "--tls-key-file", str(pair.key)]
        trust = ["--tls-ca-cert-file", str(pair.certificate), "--tls-auth-clients", "no"]
        super().__init__(folder, "--tls-port", str(self.tls_port), *files, *trust, "--requirepass", SECRET)


@pytest.fixture(scope="module")
def redis(servers: Path, pair: Pair) -> Iterator[TlsRedis]:
    yield from running(lambda: TlsRedis(servers, pair))


def postgres_url(server: Postgres, password: str, trusted: Path, mode: str = "verify-full") -> str:
    where = f"worker:{password}@127.0.0.1:{server.port}/postgres"
    return f"postgresql://{where}?sslmode={mode}&sslrootcert={trusted}&timeout=60s"


def redis_url(server: TlsRedis, password: str, trusted: Path) -> str:
    return f"rediss://:{password}@127.0.0.1:{server.tls_port}/0?ssl_ca_certs={trusted}"


def test_postgresql_with_a_certificate_and_a_password(postgres: Postgres, pair: Pair) -> None:
    store = open_store(postgres_url(postgres, SECRET, pair.certificate))

    assert claim(store, 1)
    with psycopg.connect(f"{postgres.url()}?sslmode=require") as connection:
        query = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'worker'"
        assert {row[0] for row in connection.execute(query)} == {True}
    store.close()


def test_redis_with_a_certificate_and_a_password(redis: TlsRedis, pair: Pair) -> None:
    store = open_store(redis_url(redis, SECRET, pair.certificate))

    assert claim(store, 1)
    store.close()


@pytest.mark.parametrize("password", [SECRET, "wrong-hunter3"])
def test_an_untrusted_certificate_is_refused(
    postgres: Postgres, redis: TlsRedis, stranger: Pair, password: str
) -> None:
    for url in (
        postgres_url(postgres, password, stranger.certificate),
        redis_url(redis, password, stranger.certificate),
    ):
        store = open_store(url)
        with pytest.raises(StoreError, match=r"(?i)certificate") as caught:
            store.peek(keys(1))
        assert password not in f"{caught.value!r} {caught.value.__cause__!r}"
        store.close()


def test_a_wrong_password_is_reported_without_showing_it(postgres: Postgres, redis: TlsRedis, pair: Pair) -> None:
    wrong = "wrong-hunter3"
    for url in (postgres_url(postgres, wrong, pair.certificate), redis_url(redis, wrong, pair.certificate)):
        store = open_store(url)
        with pytest.raises(StoreError, match="password") as caught:
            store.peek(keys(1))
        assert wrong not in f"{caught.value!r} {caught.value.__cause__!r}"
        store.close()


def test_a_server_that_requires_tls_refuses_a_plain_connection(postgres: Postgres, pair: Pair) -> None:
    store = open_store(postgres_url(postgres, SECRET, pair.certificate, mode="disable"))

    with pytest.raises(StoreError) as caught:
        store.peek(keys(1))

    assert SECRET not in str(caught.value)
    store.close()
