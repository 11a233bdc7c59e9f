"""Support for users' own classes: importing them, catching their mistakes, and recording their code and their state."""
