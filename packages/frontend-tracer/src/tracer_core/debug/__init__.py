"""Stages, logs and fallbacks: what a user sees of a compilation."""
