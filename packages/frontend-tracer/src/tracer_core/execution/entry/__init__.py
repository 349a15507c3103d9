"""Cache entries, the regions that they belong to, and the code that is generated for them."""
