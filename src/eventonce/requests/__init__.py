"""What every door for requests needs: refusals, and how a sender is answered."""
