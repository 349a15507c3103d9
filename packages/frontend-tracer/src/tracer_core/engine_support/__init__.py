"""Plug-ins around an inference engine: value checks, op support checks, layouts, promotion."""
