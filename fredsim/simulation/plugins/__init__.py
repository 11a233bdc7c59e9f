"""Users' classes at work: their contract, and what is checked of each call."""
