"""Wheels without an index: those of what is installed here, and empty ones of any name and platform."""

import hashlib
from base64 import urlsafe_b64encode
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile


def repacked(name: str, folder: Path, tag: str) -> Path:
    """Write the wheel of an installed distribution, as it was before it was installed."""
    distribution = metadata.distribution(name)
    files = {
        str(file): file.read_binary()
        for file in distribution.files or ()
        if file.suffix != ".pyc" and ".." not in file.parts and file.name not in ("RECORD", "INSTALLER", "REQUESTED")
    }
    return _written(name, distribution.version, tag, files, folder)


def empty(name: str, version: str, folder: Path, tag: str) -> Path:
    """Write a wheel with one empty module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": b"",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    return _written(name, version, tag, files, folder)


def _written(name: str, version: str, tag: str, files: dict[str, bytes], folder: Path) -> Path:
    wheel, info = folder / f"{name}-{version}-{tag}.whl", f"{name}-{version}.dist-info"
    record = [f"{file},sha256={_digest(content)},{len(content)}" for file, content in files.items()]
    with ZipFile(wheel, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    return wheel


def _digest(content: bytes) -> str:
    return urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
