"""Torture: real workers on a real store and queue, a nemesis that breaks things, and a checker of what happened."""

from lab.torture.run import Plan, Torture
from lab.torture.verdict import Verdict

__all__ = ["Plan", "Torture", "Verdict"]
