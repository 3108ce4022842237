"""Reading the events of several jobs to their ends, whatever happens to the connection."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chaos.diary import Life
from mlxq_producer import Producer
from mlxq_schemas import Event, is_terminal
from mlxq_schemas.errors import Expired, QueueUnavailable, UnknownJob


@dataclass
class Story:
    """What a reader got of one life; without an end it was told that there is no such job."""

    life: Life
    events: list[Event] = field(default_factory=list[Event])

    @property
    def end(self) -> Event | None:
        return self.events[-1] if self.events and is_terminal(self.events[-1]) else None

    @property
    def seqs(self) -> list[int]:
        return [event.seq for event in self.events]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if event.type == "token")


def gather(producer: Producer, lives: Sequence[Life]) -> Iterator[Story]:
    """Each story as soon as it is whole: first all over one subscription, then one by one."""
    stories = {life.job_id: Story(life) for life in lives}
    try:
        for event in producer.follow_many(list(stories)):
            stories[event.job].events.append(event)
            if is_terminal(event):
                yield stories.pop(event.job)
    except (QueueUnavailable, UnknownJob, Expired):
        pass  # one is gone; the others go on
    for job_id, story in stories.items():
        while story.end is None and _go_on(producer, job_id, story):
            pass
        yield story


def _go_on(producer: Producer, job_id: str, story: Story) -> bool:
    """Read on; False if there is nothing to be read any more."""
    try:
        for event in producer.follow(job_id, from_seq=len(story.events)):
            story.events.append(event)
    except QueueUnavailable:
        time.sleep(0.2)
        return True
    except (UnknownJob, Expired):
        return False
    return story.end is not None
