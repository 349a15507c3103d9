"""What an instruction means on real objects: attributes, calls, containers, operators, side
effects.
"""
