"""Guarded code regions: captures them, caches them, runs them, and resumes after graph breaks."""
