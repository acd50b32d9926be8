"""Coverage-guided fuzzing of one target, or of each in turn: `python -m tests.fuzz.run SECONDS [TARGET]...`

It needs atheris. A finding is written to tests/fuzz/cases/TARGET, and the ordinary tests repeat it from then on.
"""

import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).with_name("cases")
MAX_BYTES, MAX_SECONDS, MAX_MEGABYTES = 4096, 10, 2048


def fuzz(name: str, seconds: str) -> None:
    """Fuzz one target in this process until the time has passed or it fails."""
    import atheris

    with atheris.instrument_imports(include=["eventonce"]):
        from tests.fuzz.seeds import seeds
        from tests.fuzz.targets import TARGETS

    corpus = Path(f".fuzz/{name}")
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(name)):
        (corpus / f"seed-{number}").write_bytes(seed)
    cases = CASES / name
    cases.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_len={MAX_BYTES}", f"-timeout={MAX_SECONDS}", f"-rss_limit_mb={MAX_MEGABYTES}"]
    atheris.Setup(
        [sys.argv[0], f"-max_total_time={seconds}", *limits, f"-artifact_prefix={cases}/", "-verbosity=0", str(corpus)],
        TARGETS[name],
    )
    atheris.Fuzz()


def main(seconds: str, names: list[str]) -> int:
    """Fuzz each target in a process of its own. Return how many failed."""
    if names[:1] == ["--here"]:
        fuzz(names[1], seconds)
        return 0
    from tests.fuzz.targets import TARGETS

    failed = 0
    for name in names or TARGETS:
        command = [sys.executable, "-m", "tests.fuzz.run", seconds, "--here", name]
        bad = subprocess.run(command, check=False).returncode != 0
        print(f"{name}: {'FAILED' if bad else 'nothing found'}", flush=True)
        failed += bad
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
