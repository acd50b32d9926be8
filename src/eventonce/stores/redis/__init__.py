"""Claims in Redis or Valkey."""
