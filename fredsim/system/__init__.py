"""The machine and its operating system: memory, processors, files; nothing of the simulator."""
