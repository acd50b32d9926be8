"""What a pipeline needs of AWS: planned, made in an account, or printed as a template."""
