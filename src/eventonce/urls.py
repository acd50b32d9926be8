"""URLs as users write them: a scheme that is supported, or a file.

A file is `-`, what says `file:NAME`, or a name without a scheme that has a path separator or a suffix, or that exists.
Anything else is refused: a mistyped URL that counted as a file would take events in silence.
"""

import os
import re
from collections.abc import Mapping

from eventonce.errors import ConfigError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_WORD = re.compile(r"[\w./-]*")
_MAX_SHOWN = 60  # characters


def file_name(url: str) -> str | None:
    """Return the name of the file in a URL, or None if the URL has another scheme. `-` is a standard stream."""
    if not url.startswith("file:"):
        return None if _SCHEME.match(url) else url
    name = url.removeprefix("file:").removeprefix("//")
    if not name or (url.startswith("file://") and not name.startswith("/")):
        raise ConfigError(f"{url[:_MAX_SHOWN]!r} names no file; write file:NAME or file:///ABSOLUTE/NAME")
    return "./-" if name == "-" else name


def read_scheme(url: str, forms: Mapping[str, str], setting: str, *, files: bool = True) -> str:
    """Return the scheme of a URL, or an empty string for a file. Raise `ConfigError` if it is neither.

    `forms` has the form of a URL of each scheme, such as `sqs://QUEUE`, for the error that names the nearest.
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme in forms and (rest.startswith("//") or "//" not in forms[scheme]):
        return scheme
    name = file_name(url) if files else None
    if name is None:
        # What follows the scheme may be secret, and so may all that is not even a word.
        word = repr(url) if _WORD.fullmatch(url) else "what is not a URL"
        shown = f"{scheme}:{'//' if rest.startswith('//') else ''}" if colon else word
        remedy = _remedy(scheme, forms, files=files, near_file=files and not rest.startswith("//"))
        raise ConfigError(f"{setting}: {shown:.{_MAX_SHOWN}} is not supported; {remedy}")
    if name == url and not _is_like_a_file(name, forms):
        remedy = _remedy(name.partition("/")[0], forms, files=True, near_file=True)
        raise ConfigError(f"{setting}: {name!r:.{_MAX_SHOWN}} is neither a URL nor like a file; {remedy}")
    return ""


def _is_like_a_file(name: str, forms: Mapping[str, str]) -> bool:
    if name.partition("//")[0] in forms:  # https//example.com
        return False
    return name == "-" or "/" in name or bool(os.path.splitext(name)[1]) or os.path.exists(name)  # noqa: PTH110, PTH122


def _remedy(scheme: str, forms: Mapping[str, str], *, files: bool, near_file: bool) -> str:
    """Return the nearest form, with that of a file if one may be meant, or else all forms."""
    from difflib import get_close_matches  # only for an error

    if near := get_close_matches(scheme.lower(), forms, n=1):
        return f"did you mean {forms[near[0]]}{', or file:NAME for a file' if near_file else ''}"
    return f"use {', '.join(dict.fromkeys([*(['a file (file:NAME)', '-'] if files else []), *forms.values()]))}"
