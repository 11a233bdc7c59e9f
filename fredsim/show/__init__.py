"""What comes out, to be looked at: tables, figures, reports, progress."""
