"""Torture: real workers on a real store and queue, a nemesis that breaks things, and a checker of what happened."""

from lab.torture.report import TortureReport
from lab.torture.run import Torture, TortureSettings

__all__ = ["TortureSettings", "Torture", "TortureReport"]
