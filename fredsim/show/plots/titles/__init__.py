"""The words of figures: the question in the title, and the names of what is compared."""
