"""Executes instructions symbolically: attributes, calls, containers, operators, side effects."""
