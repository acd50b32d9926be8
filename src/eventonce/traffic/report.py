"""The report of an audit. Its JSON form is these classes, field by field."""

import msgspec


class Bar(msgspec.Struct, frozen=True):
    """The copies that came within this time, but not within that of the bar before. None is without end."""

    up_to: str | None
    up_to_ms: int | None
    copies: int


class Window(msgspec.Struct, frozen=True):
    """The window that would have caught this share of the copies whose gap is known."""

    percent: float
    gap_ms: int
    window: str  # the gap, rounded up to a duration that a rule can have


class Between(msgspec.Struct, frozen=True):
    """The time between copies, from the first one, or from the one before if a rule's window slides."""

    known: int
    unknown: int  # a copy or its first has no time
    same_time: int  # redelivered unchanged, with the same time
    longest_ms: int | None
    windows: list[Window]
    histogram: list[Bar]


class Reason(msgspec.Struct, frozen=True):
    """Why events were rejected, and where the first of them is."""

    reason: str
    events: int
    place: str


class Example(msgspec.Struct, frozen=True):
    """A copy that differs from its first: where both are, and the fields that differ."""

    first: str
    copy: str
    fields: list[str]


class Field(msgspec.Struct, frozen=True):
    """A path that differs, and in how many of the pairs that were compared."""

    path: str
    pairs: int


class Suspicious(msgspec.Struct, frozen=True):
    """Drops whose content differs from that of the event they are taken for."""

    events: int
    compared: int
    fields: list[Field]
    examples: list[Example]


class Applied(msgspec.Struct, frozen=True):
    """A rule, and the events that it applied to."""

    rule: str
    window: str
    events: int


class Counts(msgspec.Struct, frozen=True):
    """What becomes of the events of a source and type."""

    events: int = 0
    distinct: int = 0  # run: first copies and higher versions
    duplicates: int = 0  # dropped: the key is known, and its window has not expired
    new_id: int = 0  # of the duplicates, those whose id did not come before: a key by id misses them
    stale: int = 0  # dropped: a lower version of a known key
    late: int = 0  # copies that run again, because the window has expired
    only_id: int = 0  # run, though the id alone was seen before
    only_content: int = 0  # run, though the content alone was seen before
    id_and_content: int = 0  # run, though both were
    suspicious: int = 0  # of the duplicates, those with another content
    suspicious_new_id: int = 0  # of these, those whose id did not come before
    rejected: int = 0
    replayed: int = 0  # of all, those that carry the name of a replay


class TypeReport(msgspec.Struct, frozen=True):
    """The audit of one source and type."""

    source: str
    type: str
    counts: Counts
    rules: list[Applied]
    between: Between
    suspicious: Suspicious
    rejected: list[Reason]


class Unreadable(msgspec.Struct, frozen=True):
    """A file or folder that was not read, or not to its end."""

    path: str
    reason: str


class Inputs(msgspec.Struct, frozen=True):
    """What was read."""

    files: int
    documents: int
    unreadable: list[Unreadable]


class AuditReport(msgspec.Struct, frozen=True):
    """The whole audit."""

    inputs: Inputs
    totals: Counts  # with documents that are not events, as rejected
    between: Between
    no_events: list[Reason]  # why documents are not events
    groups: list[TypeReport]
    notes: list[str]
    audit: int = 1  # the version of this format

    @property
    def complete(self) -> bool:
        """Whether all of the traffic could be read and keyed."""
        return not self.inputs.unreadable and not self.totals.rejected
