"""The kinds of figures, a file each (fredsim.config.figures.options.KINDS): what their panels show."""
