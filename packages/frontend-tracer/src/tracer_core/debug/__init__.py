"""Stages, logs, fallbacks: what a user sees of a compilation."""
