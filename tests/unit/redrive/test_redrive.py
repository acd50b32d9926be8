"""Redriving: one more attempt for each letter, nothing lost and nothing twice."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from eventonce import Once
from eventonce.claims.outcome import OutcomeKind
from eventonce.dead_letters import open_dead_letters
from eventonce.dead_letters.letter import read_letter
from eventonce.errors import EventRejected, SinkDown, SinkError, StoreUnusable
from eventonce.event import Event
from eventonce.redrive import DeadLetter, Redrive, groups, open_box, redrive_settings
from eventonce.settings import load
from eventonce.sources import open_source
from eventonce.wire import open_once
from eventonce.worker import Worker
from tests.unit.conftest import Faulty

Handler = Callable[[Event], Any]


def broken(event: Event) -> None:
    raise ValueError(f"no luck with {event.id}")


class Morgue:
    """A pipeline whose events have died, and redrives of them."""

    def __init__(self, folder: Path, dead_letter: str) -> None:
        self.folder = folder
        self.dead_letter = dead_letter
        self.settings = load(
            store=f"sqlite:///{folder / 'store.db'}",
            source=str(folder / "in.jsonl"),
            dead_letter=dead_letter,
            max_attempts=2,
        )
        self.ran: list[str] = []
        self.seen: list[tuple[str, OutcomeKind]] = []

    def die(self, *events: Any, handler: Handler = broken) -> None:
        """Run events through a handler that fails."""
        self.work(*events, handler=handler)

    def work(self, *events: Any, handler: Handler | None = None) -> None:
        lines = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
        (self.folder / "in.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        source, letters = open_source(self.settings.source), open_dead_letters(self.dead_letter)
        with open_once(self.settings) as once:
            Worker(once, source, handler or self.note, letters, batch=10).run()
        source.close()
        letters.close()

    def note(self, event: Event) -> None:
        self.ran.append(event.id)

    def redrive(self, handler: Any = None, *, reprocess: bool = False, store: Any = None, **more: Any) -> bool:
        """Redrive all letters. Return whether all are done."""
        self.seen = []
        settings = redrive_settings(self.settings, reprocess=reprocess)
        once = open_once(settings) if store is None else Once(store, max_attempts=settings.max_attempts)
        box = open_box(self.dead_letter)
        for name, value in more.items():
            setattr(box, name, value)
        try:
            letters = [letter for letter in box.letters() if letter.unreadable is None]
            return Redrive(once, handler or self.note, box, reprocess=reprocess, watch=self._watch).run(letters)
        finally:
            box.close()
            once.close()

    def _watch(self, letter: DeadLetter, outcome: Any) -> None:
        self.seen.append((letter.reason, outcome.kind))

    def left(self) -> list[DeadLetter]:
        box = open_box(self.dead_letter)
        try:
            return list(box.letters())
        finally:
            box.close()

    @property
    def kinds(self) -> list[OutcomeKind]:
        return [kind for _, kind in self.seen]


@pytest.fixture(params=["file", "table"])
def morgue(request: pytest.FixtureRequest, tmp_path: Path) -> Morgue:
    places = {"file": str(tmp_path / "dead.jsonl"), "table": f"sqlite:///{tmp_path / 'store.db'}"}
    return Morgue(tmp_path, places[request.param])


@pytest.fixture
def in_file(tmp_path: Path) -> Morgue:
    return Morgue(tmp_path, str(tmp_path / "dead.jsonl"))


def events(*names: str) -> list[dict[str, Any]]:
    return [{"id": name} for name in names]


# --- one more attempt ---


def test_what_had_used_up_its_attempts_runs_and_its_letter_goes(morgue: Morgue) -> None:
    morgue.die(*events("a", "b"))
    assert [letter.attempts for letter in morgue.left()] == [2, 2]
    assert morgue.redrive()
    assert (sorted(morgue.ran), morgue.kinds) == (["a", "b"], [OutcomeKind.PROCESSED] * 2)
    assert morgue.left() == []


def test_a_late_copy_of_what_was_redriven_is_a_duplicate(morgue: Morgue) -> None:
    morgue.die(*events("a"))
    morgue.redrive()
    morgue.work(*events("a"))
    assert morgue.ran == ["a"]


def test_what_fails_again_stays_with_its_new_reason(morgue: Morgue) -> None:
    def worse(event: Event) -> None:
        raise KeyError(event.id)

    morgue.die(*events("a"))
    assert not morgue.redrive(worse)
    assert not morgue.redrive(worse)
    (letter,) = morgue.left()
    assert (letter.attempts, letter.reason, letter.outcome) == (4, "'a'", "failed")
    assert letter.body == b'{"id": "a"}'
    assert morgue.redrive()
    assert (morgue.ran, morgue.left()) == (["a"], [])


def test_each_is_tried_once_in_a_redrive(morgue: Morgue) -> None:
    calls: list[str] = []

    def failing(event: Event) -> None:
        calls.append(event.id)
        raise EventRejected("not this one")

    morgue.die(*events("a", "b"))
    assert not morgue.redrive(failing)
    assert (sorted(calls), morgue.kinds) == (["a", "b"], [OutcomeKind.REJECTED] * 2)


def test_what_was_rejected_runs_once_its_reason_is_gone(morgue: Morgue) -> None:
    def refuse(event: Event) -> None:
        raise EventRejected("not yet")

    morgue.die(*events("a"), handler=refuse)
    assert morgue.redrive()
    assert morgue.ran == ["a"]


def test_what_can_never_be_read_stays(morgue: Morgue) -> None:
    morgue.die(b"junk", {"id": "a"})
    assert not morgue.redrive()
    assert morgue.ran == ["a"]
    (letter,) = morgue.left()
    assert (letter.body, letter.attempts) == (b"junk", 0)


def test_another_copy_got_through_meanwhile(morgue: Morgue) -> None:
    morgue.die(*events("a"))
    with open_once(morgue.settings) as once:
        once.forget([once.key({"id": "a"})])
    morgue.work(*events("a"))
    assert morgue.redrive()
    assert (morgue.ran, morgue.kinds, morgue.left()) == (["a"], [OutcomeKind.DUPLICATE], [])


def test_two_letters_of_one_event_run_it_once(morgue: Morgue) -> None:
    morgue.die(*events("a"))
    morgue.die(*events("a"))
    assert morgue.redrive()
    assert (morgue.ran, sorted(morgue.kinds), morgue.left()) == (
        ["a"],
        [OutcomeKind.DUPLICATE, OutcomeKind.PROCESSED],
        [],
    )


def test_an_async_handler_is_awaited(morgue: Morgue) -> None:
    async def handle(event: Event) -> None:
        morgue.ran.append(event.id)

    morgue.die(*events("a", "b"))
    assert morgue.redrive(handle)
    assert sorted(morgue.ran) == ["a", "b"]


# --- again ---


def test_reprocess_runs_what_is_done_once_for_each_letter(morgue: Morgue) -> None:
    morgue.die(*events("a"))
    with open_once(morgue.settings) as once:
        once.forget([once.key({"id": "a"})])
    morgue.work(*events("a"))
    with pytest.raises(KeyboardInterrupt):  # killed before the letter is taken out
        morgue.redrive(reprocess=True, remove=_killed)
    assert morgue.ran == ["a", "a"]
    assert morgue.redrive(reprocess=True)
    assert (morgue.ran, morgue.kinds, morgue.left()) == (["a", "a"], [OutcomeKind.DUPLICATE], [])


def test_reprocess_gives_the_handler_the_replay_name(morgue: Morgue) -> None:
    replays: list[str | None] = []
    morgue.die(*events("a"))
    (letter,) = morgue.left()
    assert morgue.redrive(lambda event: replays.append(event.replay), reprocess=True)
    assert replays == [letter.replay_name]


def test_reprocess_keeps_the_rules_of_the_pipeline(tmp_path: Path) -> None:
    rules = [{"name": "orders", "match": {"source": ["o"]}, "key": "content"}]
    again = redrive_settings(load(rule=rules), reprocess=True)
    assert [(rule.name, rule.replay) for rule in again.rule] == [("orders", "reprocess"), ("no rule", "reprocess")]


# --- killed half-way, and run again ---


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_killed_before_the_letters_are_taken_out_nothing_runs_twice(morgue: Morgue) -> None:
    morgue.die(*events(*"abcdef"))
    with pytest.raises(KeyboardInterrupt):
        morgue.redrive(remove=_killed)
    assert len(morgue.left()) == 6
    assert morgue.redrive()
    assert sorted(morgue.ran) == list("abcdef")
    assert (morgue.kinds, morgue.left()) == ([OutcomeKind.DUPLICATE] * 6, [])


def test_killed_in_the_middle_of_a_batch_the_rest_runs_the_next_time(morgue: Morgue) -> None:
    def until_c(event: Event) -> None:
        if event.id == "c":
            raise KeyboardInterrupt
        morgue.note(event)

    morgue.die(*events(*"abcdef"))
    with pytest.raises(KeyboardInterrupt):
        morgue.redrive(until_c)
    assert len(morgue.left()) == 6
    assert morgue.redrive()
    assert (sorted(morgue.ran), morgue.left()) == (list("abcdef"), [])


def test_killed_between_two_batches(morgue: Morgue) -> None:
    names = [f"e{number:02}" for number in range(50)]

    def until_30(event: Event) -> None:
        if len(morgue.ran) == 30:
            raise KeyboardInterrupt
        morgue.note(event)

    morgue.die(*events(*names))
    with pytest.raises(KeyboardInterrupt):
        morgue.redrive(until_30)
    assert len(morgue.left()) == 30
    assert morgue.redrive()
    assert (sorted(morgue.ran), morgue.left()) == (names, [])


def test_half_a_note_of_a_killed_redrive_costs_nothing(in_file: Morgue) -> None:
    in_file.die(*events("a", "b"))
    first, second = in_file.left()
    journal = Path(f"{in_file.dead_letter}.redriven")
    journal.write_text(json.dumps({"letter": first.id, "redriven": True}) + '\n{"letter": "')
    assert in_file.left() == [second]
    assert in_file.redrive()
    assert (len(in_file.ran), in_file.left()) == (1, [])


# --- what stays as it was ---


def test_what_another_worker_runs_stays(morgue: Morgue) -> None:
    morgue.die(*events("a"))

    def meanwhile(event: Event) -> None:
        assert not morgue.redrive()
        assert morgue.kinds == [OutcomeKind.BUSY]

    (before,) = morgue.left()
    with open_once(redrive_settings(morgue.settings, reprocess=False)) as once:
        once.run([{"id": "a"}], meanwhile)
    assert morgue.left() == [before]
    assert morgue.ran == []


def test_what_has_grown_too_old_stays(tmp_path: Path) -> None:
    morgue = Morgue(tmp_path, str(tmp_path / "dead.jsonl"))
    morgue.die({"id": "a", "time": "2020-01-01T00:00:00Z", "source": "s", "detail-type": "t", "detail": {}})
    morgue.settings = load(
        store=morgue.settings.store, rule=[{"name": "r", "key": "id", "max_age": "1h", "replaces": "id"}]
    )
    (before,) = morgue.left()
    assert not morgue.redrive()
    assert (morgue.kinds, morgue.left()) == ([OutcomeKind.EXPIRED], [before])


def test_a_store_that_does_not_answer_leaves_all_letters(morgue: Morgue) -> None:
    morgue.die(*events("a"))
    before = morgue.left()
    assert not morgue.redrive(store=Faulty("claim"))
    assert (morgue.kinds, morgue.left(), morgue.ran) == ([OutcomeKind.UNKNOWN], before, [])


def test_a_store_that_cannot_be_used_ends_the_redrive(morgue: Morgue) -> None:
    class Useless(Faulty):
        def claim(self, *_: Any) -> Any:
            raise StoreUnusable("it is gone")

    morgue.die(*events("a"))
    with pytest.raises(StoreUnusable):
        morgue.redrive(store=Useless())
    assert len(morgue.left()) == 1


class Sink:
    """A sink that takes some events."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)

    def send(self, events: Iterable[Event], idempotency_keys: Iterable[str]) -> list[Exception | None]:
        if not self.answers:
            raise SinkError("it is gone")
        return [self.answers.pop(0) for _ in events]

    def close(self) -> None: ...


def test_a_sink_that_cannot_be_written_ends_the_redrive(morgue: Morgue) -> None:
    morgue.die(*events("a"))
    with pytest.raises(SinkError):
        morgue.redrive(Sink())
    assert len(morgue.left()) == 1


def test_what_a_sink_did_not_take_stays(morgue: Morgue) -> None:
    morgue.die(*events("a", "b"))
    _, second = morgue.left()
    assert not morgue.redrive(Sink(None, SinkDown("not now")))
    assert [letter.body for letter in morgue.left()] == [second.body]


# --- a file that workers write to ---


def test_the_file_is_emptied_when_no_letter_is_left(in_file: Morgue) -> None:
    in_file.die(*events("a", "b"))
    in_file.redrive()
    assert Path(in_file.dead_letter).read_bytes() == b""
    assert not Path(f"{in_file.dead_letter}.redriven").exists()


def test_a_letter_that_comes_during_a_redrive_is_not_lost(in_file: Morgue) -> None:
    def meanwhile(event: Event) -> None:
        in_file.die({"id": "late"})

    in_file.die(*events("a"))
    assert in_file.redrive(meanwhile)
    assert [letter.body for letter in in_file.left()] == [b'{"id": "late"}']
    assert in_file.redrive()
    assert (in_file.ran, Path(in_file.dead_letter).read_bytes()) == (["late"], b"")


def test_a_worker_that_has_the_file_open_goes_on_writing_to_it(in_file: Morgue) -> None:
    in_file.die(*events("a"))
    letters = open_dead_letters(in_file.dead_letter)  # opens it
    in_file.redrive()
    from tests.unit.dead_letters.test_dead_letters import NOW, dead

    letters.write([dead()], NOW)
    letters.close()
    assert [letter.body for letter in in_file.left()] == [b'{"id":"1"}']


def test_a_line_that_cannot_be_a_letter_is_never_deleted(in_file: Morgue) -> None:
    in_file.die(*events("a"))
    with open(in_file.dead_letter, "ab") as file:
        file.write(b"what is this\n")
    assert in_file.redrive()
    (letter,) = in_file.left()
    assert letter.unreadable is not None
    assert b"what is this\n" in Path(in_file.dead_letter).read_bytes()


@pytest.mark.parametrize("wrong", [{"rule": ["a"]}, {"key": {}}])
def test_a_letter_whose_rule_or_key_is_not_a_string_is_damaged(wrong: dict[str, Any]) -> None:
    fields = {"outcome": "failed", "reason": "", "attempts": 1, "rule": None, "key": None, "time": "", "body": "{}"}
    letter = read_letter(json.dumps({**fields, **wrong}).encode())
    assert letter.unreadable is not None
    assert [group.size for group in groups([letter])] == [1]


# --- letters of several events ---


def batch(*bodies: str) -> dict[str, Any]:
    return {
        "Records": [
            {"messageId": f"m-{number}", "receiptHandle": "", "body": body, "eventSource": "aws:sqs"}
            for number, body in enumerate(bodies)
        ]
    }


def test_parts_without_ids_of_their_own_are_not_taken_for_copies(morgue: Morgue) -> None:
    morgue.die(batch('{"n": 1}', '{"n": 2}'))
    assert morgue.redrive()
    assert (sorted(morgue.ran), morgue.left()) == (["m-0", "m-1"], [])
    morgue.work(batch('{"n": 1}', '{"n": 2}'))
    assert sorted(morgue.ran) == ["m-0", "m-1"]


def test_a_document_that_was_kept_whole_stays_while_a_part_cannot_be_read(morgue: Morgue) -> None:
    morgue.work(batch('{"n": 1}', "{"))
    assert morgue.ran == ["m-0"]
    assert not morgue.redrive()
    assert (morgue.ran, morgue.kinds) == (["m-0"], [OutcomeKind.REJECTED])
    assert len(morgue.left()) == 1
