"""A user's own classes: where they are looked up, which code they are, and what is said when they fail."""
