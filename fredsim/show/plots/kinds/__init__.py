"""The kinds of figures, a file each: what their panels show."""
