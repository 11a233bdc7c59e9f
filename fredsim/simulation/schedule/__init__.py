"""Who arrives when: orders, lengths, and the log of events."""
