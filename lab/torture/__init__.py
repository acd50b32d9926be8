"""Torture: real workers on a real store and queue, a nemesis that breaks things, and a checker of what happened."""

from eventonce.proof.torture.run import Plan, Torture
from eventonce.proof.torture.verdict import Verdict

__all__ = ["Plan", "Torture", "Verdict"]
