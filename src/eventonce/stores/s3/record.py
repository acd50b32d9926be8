"""A record as the body of an S3 object: one line of JSON, and always the same bytes for the same record."""

import json
from base64 import b64decode, b64encode
from typing import Any

from eventonce.claims.protocol import Record

LARGEST_MEMO = 5 * 1024 * 1024
LARGEST_BODY = 4 * LARGEST_MEMO  # with its error, which is much shorter than that
_FORMAT = 1
_TYPES: dict[str, tuple[type, ...]] = {
    "token": (str,),
    "lease": (int,),
    "shared": (bool,),
    "tries": (int,),
    "trying": (int, type(None)),
    "done_at": (int,),
    "until": (int,),
    "attempts": (int,),
    "version": (int, type(None)),
    "memo": (str, type(None)),
    "error": (str, type(None)),
    "expires": (int,),
}


def encode(record: Record) -> bytes:
    """Return the body of the object of a record."""
    memo = None if record.memo is None else b64encode(_limit_memo(record.memo)).decode()
    fields = record._replace(token=record.token.hex(), memo=memo)._asdict()  # type: ignore[arg-type]
    return json.dumps({"eventonce": _FORMAT, **fields}, separators=(",", ":")).encode()


def decode(body: bytes) -> Record:
    """Return the record in the body of an object. Raise `ValueError` if another program wrote the body."""
    try:
        fields: Any = json.loads(body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(fields, dict) or fields.pop("eventonce", None) != _FORMAT:
        raise ValueError(f"it does not begin with the format {_FORMAT}")
    if fields.keys() != _TYPES.keys() or any(type(fields[name]) not in types for name, types in _TYPES.items()):
        raise ValueError("its fields are not those of a record")
    token, memo = bytes.fromhex(fields["token"]), fields["memo"]
    return Record(**{**fields, "token": token, "memo": None if memo is None else b64decode(memo, validate=True)})


def _limit_memo(memo: bytes) -> bytes:
    """Return the memo, or the reason for its absence if it is too large. The run must be remembered anyway."""
    if len(memo) <= LARGEST_MEMO:
        return memo
    return json.dumps({"not_kept": f"the result takes {len(memo):,} bytes, too many for the S3 store"}).encode()
