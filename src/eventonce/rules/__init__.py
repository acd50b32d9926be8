"""Rules compiled for use, and how they are written in TOML."""

from eventonce.rules.load import given_rules, load_rules, read_all
from eventonce.rules.rulebook import CompiledRule, Keyed, Rulebook, identity

__all__ = ["CompiledRule", "Keyed", "Rulebook", "given_rules", "identity", "load_rules", "read_all"]
