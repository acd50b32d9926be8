"""Claims in DynamoDB."""
