"""Redriving: dead letters are read back, chosen, and run through the pipeline again."""

from eventonce.redrive.box import Box, open_box
from eventonce.redrive.choice import Choice, Group, Plan, groups, plan
from eventonce.redrive.letter import Letter
from eventonce.redrive.redrive import DONE, Redrive, redrive_settings

__all__ = [
    "DONE",
    "Box",
    "Choice",
    "Group",
    "Letter",
    "Plan",
    "Redrive",
    "groups",
    "open_box",
    "plan",
    "redrive_settings",
]
