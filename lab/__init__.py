"""Proof: a model of the claim protocol, a simulator that breaks the real engine on purpose, and what it must find."""
