"""Every example in the README and the docs runs, and says what it is said to say."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import boto3
import pytest

from lab import proof_page
from tests.servers import Ministack
from tools import cli_page

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BILLING = """
def charge(event):
    with open("charged", "a") as file:
        print(event.data["orderId"], file=file)
"""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def examples(language: str) -> list[object]:
    params: list[object] = []
    for page in PAGES:
        blocks = [match for match in BLOCK.finditer(page.read_text()) if match[1] == language]
        params += [
            pytest.param(match[2], match[3], id=f"{page.name}-{number}") for number, match in enumerate(blocks, 1)
        ]
    return params


def run(command: list[str], folder: Path, **more: str) -> str:
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": scripts, **more},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("code", "expected"), examples("python"))
def test_python(code: str, expected: str | None, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    is_test = "class Test" in code
    file = tmp_path / ("test_example.py" if is_test else "example.py")
    file.write_text(code)
    plugin = ["-p", "eventonce.testing.plugin"] if "once_trial" in code else []
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin] if is_test else []
    servers = {"DATABASE_URL": request.getfixturevalue("postgres_server").url()} if "DATABASE_URL" in code else {}
    if "Publisher(" in code:
        servers["AWS_ENDPOINT_URL"] = request.getfixturevalue("ministack").endpoint()
    printed = run([sys.executable, *options, str(file)], tmp_path, **servers)
    if expected is not None:
        assert printed == expected


@pytest.mark.parametrize(("code", "expected"), examples("sh"))
def test_shell(code: str, expected: str | None, tmp_path: Path) -> None:
    printed = run(["bash", "-euc", code], tmp_path)
    assert printed.count('"state": "done"') == 3


@pytest.mark.parametrize(("code", "expected"), examples("toml"))
def test_pipelines(code: str, expected: str | None, tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(code)
    (tmp_path / "billing.py").write_text("def charge(event): ...\n")
    if "charged.jsonl" not in code:  # it has a server, which is not here
        run([sys.executable, "-m", "eventonce", "check", "pipeline.toml"], tmp_path, REDIS_PASSWORD="any")
        return
    order = '{"id": "%s", "source": "com.example.shop", "detail-type": "Order Placed", "detail": {"timestamp": %s}}\n'
    (tmp_path / "events.jsonl").write_text(order % ("a", 1) + order % ("b", 2))
    run([sys.executable, "-m", "eventonce", "run", "pipeline.toml"], tmp_path)
    assert (tmp_path / "charged.jsonl").read_text().count("\n") == 1


def test_the_worker_of_the_readme(ministack: Ministack, tmp_path: Path) -> None:
    _, code, _ = next(match.groups() for match in BLOCK.finditer(PAGES[0].read_text()) if match[1] == "toml")
    (tmp_path / "pipeline.toml").write_text(code)
    (tmp_path / "billing.py").write_text(BILLING)
    event = {"id": "1", "source": "com.example.shop", "detail-type": "Order Placed", "detail": {"orderId": "o-1"}}
    (tmp_path / "orders.jsonl").write_text(json.dumps(event))
    aws = {"AWS_ENDPOINT_URL": ministack.endpoint()}
    eventonce = [sys.executable, "-m", "eventonce"]
    run([*eventonce, "setup", "pipeline.toml", "--yes"], tmp_path, **aws)
    run([*eventonce, "send", "orders.jsonl", "--to", "sqs://billing", "--copies", "4", "--new-ids"], tmp_path, **aws)
    worker = subprocess.Popen([*eventonce, "run", "pipeline.toml"], cwd=tmp_path, env={**os.environ, **aws})
    try:
        while not queue_is_empty(ministack):
            assert worker.poll() is None
            time.sleep(0.1)
    finally:
        worker.terminate()
    assert worker.wait(60) == 0
    assert (tmp_path / "charged").read_text() == "o-1\n"


def queue_is_empty(ministack: Ministack) -> bool:
    sqs: Any = boto3.client("sqs", endpoint_url=ministack.endpoint())
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    url = sqs.get_queue_url(QueueName="billing")["QueueUrl"]
    numbers = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return all(number == "0" for number in numbers.values())


def test_the_page_of_the_command_line_is_fresh() -> None:
    assert cli_page.PAGE.read_text() == cli_page.page(), "run `make docs`"


def test_the_report_of_the_proof_is_fresh() -> None:
    figures = json.loads(proof_page.FIGURES.read_text())
    assert proof_page.PAGE.read_text() == proof_page.page(figures), "run `make docs`"
    assert not any(run["violations"] for run in figures["simulated"].values())
    assert not any(run["violations"] or run["lost"] for run in figures["tortured"].values())


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", *ROOT.glob("examples/*/README.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 140
