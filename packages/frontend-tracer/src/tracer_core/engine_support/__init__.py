"""Support for plug-ins around an inference engine: value checks, op support checks, layouts, type
promotion.
"""
