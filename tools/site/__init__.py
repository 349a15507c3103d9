"""The documentation site, made from docs/ by Sphinx: ``nox -s site``."""
