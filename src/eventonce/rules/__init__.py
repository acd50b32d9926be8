"""Rules compiled for use, and how they are written in TOML."""

from eventonce.rules.book import CompiledRule, Keyed, Rulebook, identity
from eventonce.rules.load import given_rules, load_rules, read_all

__all__ = ["CompiledRule", "Keyed", "Rulebook", "given_rules", "identity", "load_rules", "read_all"]
