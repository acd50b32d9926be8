"""Rules compiled for use, and how they are written in TOML."""

from eventonce.rules.book import CompiledRule, Keyed, Rulebook
from eventonce.rules.file import load_rules, read_rules

__all__ = ["CompiledRule", "Keyed", "Rulebook", "load_rules", "read_rules"]
