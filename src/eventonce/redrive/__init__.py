"""Redriving: dead letters are read back, chosen, and run through the pipeline again."""

from eventonce.ports import DeadLetter, DeadLetterBox
from eventonce.redrive.box import open_box
from eventonce.redrive.choice import Choice, Group, Plan, groups, plan
from eventonce.redrive.redrive import DONE, Redrive, redrive_settings

__all__ = [
    "DONE",
    "DeadLetterBox",
    "Choice",
    "Group",
    "DeadLetter",
    "Plan",
    "Redrive",
    "groups",
    "open_box",
    "plan",
    "redrive_settings",
]
