"""Publishing through any sink: a file, a webhook, whatever takes events and says how it went."""

from collections.abc import Sequence

from eventonce.errors import EventRejected, SinkError
from eventonce.ports import Sink
from eventonce.publish.outgoing import Outgoing
from eventonce.publish.published import Kind, Published
from eventonce.sinks.batching import held_back
from eventonce.stamp import stamped


class PlainPublisher:
    """Sends each event once, stamped with its identity; the sink tries again by itself, as far as it does."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def send(self, events: Sequence[Outgoing]) -> list[Published]:
        """What became of each. Of one group, what is behind an event that failed is not sent."""
        answers: dict[int, Exception | None] = {}
        stuck: set[str | None] = set()
        for wave in _waves(events):
            free = [number for number in wave if events[number].group not in stuck]
            answers |= dict.fromkeys(wave, held_back()) | dict(zip(free, self._sent(events, free), strict=True))
            stuck |= {events[number].group for number in free if _failed(answers[number])} - {None}
        return [_published(each, answers[number]) for number, each in enumerate(events)]

    def _sent(self, events: Sequence[Outgoing], numbers: Sequence[int]) -> Sequence[Exception | None]:
        chosen = [events[number] for number in numbers]
        identities = [each.identity or "" for each in chosen]
        try:
            return self._sink.send(
                [stamped(each.event, each.identity or "", each.attempts + 1) for each in chosen], identities
            )
        except SinkError as error:
            return [error] * len(chosen)

    def close(self) -> None:
        self._sink.close()


def _waves(events: Sequence[Outgoing]) -> list[list[int]]:
    """Which events go together: the first of each group, then the second, and so on."""
    waves: list[list[int]] = []
    seen: dict[str, int] = {}
    for number, each in enumerate(events):
        place = 0 if each.group is None else seen.get(each.group, 0)
        if each.group is not None:
            seen[each.group] = place + 1
        if place == len(waves):
            waves.append([])
        waves[place].append(number)
    return waves


def _failed(answer: Exception | None) -> bool:
    return answer is not None and not isinstance(answer, EventRejected)


def _published(outgoing: Outgoing, answer: Exception | None) -> Published:
    kind = Kind.FAILED if _failed(answer) else Kind.PUBLISHED if answer is None else Kind.REFUSED
    attempts = outgoing.attempts + 1
    return Published(kind=kind, identity=outgoing.identity or "", attempts=attempts, error=answer)
