"""Segments: the guarded pieces that a call runs through, and the breaks between them."""
