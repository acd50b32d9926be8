"""Redriving: dead letters are read back, chosen, and run through the pipeline again."""

from eventonce.dead_letters.box import Box, open_box
from eventonce.dead_letters.letter import Letter
from eventonce.redrive.redrive import DONE, Redrive, redrive_settings
from eventonce.redrive.selection import Choice, Group, Plan, groups, plan

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
