"""The checker of torture runs, on histories written by hand: it must find what is wrong, and nothing else."""

from itertools import count
from typing import Any

from lab.torture.effects import RecordedEffect
from lab.torture.report import Checker

KEYS = {"e1": "k1", "e2": "k2"}
LEASE = 1000  # milliseconds


class Story:
    """A history, one line a millisecond."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._time = count(1000, 1000)
        self.tell("sent", events=["e1"])

    def tell(self, what: str, **more: Any) -> int:
        at = more.pop("at", None) or next(self._time)
        self.lines.append({"what": what, "pid": 1, "at": at, "began": at, **more})
        return at

    def call(self, verb: str, token: str, answer: str | None, **more: Any) -> int:
        answers = None if answer is None else [answer]
        return self.tell(verb, owners=[["k1", token]], answers=answers, lease=LEASE, **more)

    def checker(self, *dead: str, **more: Any) -> Checker:
        return Checker(self.lines, KEYS, dead, **more)


def judged(story: Story, *effects: RecordedEffect, transactional: bool = False, **more: Any) -> Checker:
    checker = story.checker(**more)
    checker.judge(effects, transactional=transactional)
    return checker


def a_good_run() -> tuple[Story, RecordedEffect]:
    story = Story()
    story.call("claim", "t", "Won")
    effect = RecordedEffect("e1", "t", 1, story.tell("effect"))
    story.call("commit", "t", "True")
    story.tell("ack", events=["e1"])
    return story, effect


def test_a_good_run_is_good() -> None:
    story, effect = a_good_run()
    story.call("claim", "u", "Done")
    story.tell("ack", events=["e1"])

    checker = judged(story, effect)

    assert (checker.violations, checker.explained, checker.fenced) == ([], [], 0)


def test_an_event_without_an_effect_is_lost() -> None:
    story, _ = a_good_run()

    assert judged(story).violations == ["e1 was lost"]


def test_a_dead_letter_is_not_lost() -> None:
    story = Story()
    checker = story.checker("e1")

    assert checker.judge([], transactional=True) == ([], [])
    assert checker.violations == []


def test_an_ack_before_anything_is_done() -> None:
    story = Story()
    story.call("claim", "t", "Busy")
    story.tell("ack", events=["e1"])

    assert story.checker().violations == ["e1 was acked, and it was neither done nor kept"]


def test_two_owners_at_a_time() -> None:
    story = Story()
    story.call("claim", "t", "Won")
    story.call("claim", "u", "Won")

    assert story.checker().violations == ["e1 was won while the lease of another lasted"]
    assert story.checker(one_clock=False).violations == []


def test_an_owner_after_a_lease_is_over() -> None:
    story = Story()
    first = story.call("claim", "t", "Won")
    story.call("claim", "u", "Won", at=first + 1000 * LEASE)

    assert story.checker().violations == []


def test_a_heartbeat_makes_a_lease_longer() -> None:
    story = Story()
    first = story.call("claim", "t", "Won")
    story.call("extend", "t", "True", at=first + 500 * LEASE)
    story.call("claim", "u", "Won", at=first + 1000 * LEASE)

    assert story.checker().violations == ["e1 was won while the lease of another lasted"]


def test_a_claim_that_was_given_back_is_free_even_if_a_heartbeat_answers_late() -> None:
    story = Story()
    story.call("claim", "t", "Won")
    story.tell("gives", owners=[["k1", "t"]])
    story.call("extend", "t", "True")
    story.call("claim", "u", "Won")
    story.call("release", "t", "True")

    assert story.checker().violations == []


def test_a_claim_may_be_free_though_its_owner_was_killed_before_it_heard_so() -> None:
    story = Story()
    story.call("claim", "t", "Won")
    story.tell("gives", owners=[["k1", "t"]])
    story.tell("killed", worker=1)
    story.call("claim", "u", "Won")

    assert story.checker().violations == []


def test_a_key_that_is_done_is_won_again() -> None:
    story, effect = a_good_run()
    story.call("claim", "u", "Won")

    assert judged(story, effect).violations == ["e1 was won after it was done"]


def test_an_answer_that_was_long_on_its_way_proves_nothing() -> None:
    story = Story()
    early = story.tell("sent", events=[])
    story.call("claim", "t", "Won", at=early + 2000 * LEASE)
    story.call("commit", "t", "True", at=early + 2100 * LEASE)
    story.call("claim", "u", "Won", at=early + 2200 * LEASE, began=early)  # taken over before t was there

    assert story.checker().violations == []


def test_two_owners_commit() -> None:
    story, effect = a_good_run()
    story.call("commit", "u", "True")

    assert judged(story, effect).violations == ["e1 was committed by two owners"]


def test_a_claim_given_back_after_its_effect() -> None:
    story = Story()
    story.call("claim", "t", "Won")
    effect = RecordedEffect("e1", "t", 1, story.tell("effect"))
    story.call("release", "t", "True")

    assert judged(story, effect).violations == ["e1 was released after its effect"]


def test_two_effects_in_transactions_are_never_explained() -> None:
    story, effect = a_good_run()
    story.tell("killed", worker=2)

    checker = judged(story, effect, effect._replace(token="u", pid=2), transactional=True)

    assert checker.violations == ["e1 took effect 2 times in transactions"]


def test_a_death_between_effect_and_commit_explains_a_second_effect() -> None:
    story, effect = a_good_run()
    other = RecordedEffect("e1", "u", 2, effect.at)
    story.tell("killed", worker=2)

    checker = judged(story, other, effect)

    assert checker.violations == []
    assert checker.explained == ["e1 took effect 2 times: a worker was killed between the effect and its commit"]


def test_a_death_before_the_effect_explains_nothing() -> None:
    story, effect = a_good_run()
    story.tell("killed", worker=2)

    checker = judged(story, effect, RecordedEffect("e1", "u", 2, story.tell("effect")))

    assert checker.violations == ["e1 took effect 2 times, and nothing explains it"]


def test_a_fenced_commit_explains_a_second_effect() -> None:
    story, effect = a_good_run()
    story.call("commit", "u", "False")

    checker = judged(story, effect, effect._replace(token="u"))

    assert (checker.violations, checker.fenced) == ([], 1)
    assert "lost its lease" in checker.explained[0]


def test_two_recorded_effects_of_one_owner_are_not_explained() -> None:
    story, effect = a_good_run()

    checker = judged(story, effect, effect)

    assert checker.violations == ["e1 took effect 2 times, and nothing explains it"]
