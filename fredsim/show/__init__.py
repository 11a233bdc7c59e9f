"""What users see of runs: tables, figures, reports, progress, and the names that `fredsim list` prints."""
