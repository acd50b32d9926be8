"""Claims in PostgreSQL."""
