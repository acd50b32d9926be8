"""Claims in S3."""
