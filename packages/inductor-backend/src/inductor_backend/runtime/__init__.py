"""What a compiled graph needs at build time and run time: compiler, disk cache, launcher, arenas."""
