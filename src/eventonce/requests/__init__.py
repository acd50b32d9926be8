"""What every door for requests needs: reading them, refusals and responses."""
