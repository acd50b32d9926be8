"""Rules: written in TOML or Python, and compiled for use."""

from eventonce.rules.load import load_rules, read_all, resolve_rules
from eventonce.rules.rulebook import CompiledRule, Keyed, Rulebook, identity

__all__ = ["CompiledRule", "Keyed", "Rulebook", "resolve_rules", "identity", "load_rules", "read_all"]
