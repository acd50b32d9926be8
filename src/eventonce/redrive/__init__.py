"""Redriving: read dead letters back, select some, and run them through the pipeline again."""

from eventonce.dead_letters import open_box
from eventonce.ports import DeadLetter, DeadLetterBox
from eventonce.redrive.redrive import DONE, Redrive, redrive_settings
from eventonce.redrive.selection import LetterFilter, LetterGroup, RedrivePlan, groups, plan

__all__ = [
    "DONE",
    "DeadLetterBox",
    "LetterFilter",
    "LetterGroup",
    "DeadLetter",
    "RedrivePlan",
    "Redrive",
    "groups",
    "open_box",
    "plan",
    "redrive_settings",
]
