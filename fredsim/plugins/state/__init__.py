"""What objects of a user's classes hold: how it is compared with their start, saved and put back."""
