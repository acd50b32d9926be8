"""Rules: written in TOML or Python, and compiled for use."""

from eventonce.rules.load import given_rules, load_rules, read_all
from eventonce.rules.rulebook import CompiledRule, Keyed, Rulebook, identity

__all__ = ["CompiledRule", "Keyed", "Rulebook", "given_rules", "identity", "load_rules", "read_all"]
