"""What clients hold and send."""
