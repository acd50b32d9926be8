"""Torture: real workers on a real store and queue, a nemesis that breaks things, and a checker of what happened."""

from lab.torture.run import Torture, TortureSettings
from lab.torture.verdict import TortureReport

__all__ = ["TortureSettings", "Torture", "TortureReport"]
