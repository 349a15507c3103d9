"""Folders and files that outlive a process: their place, their entries, released parameters."""
