"""What a plug-in around an inference engine may use: value checks, operator support, layouts, type promotion."""
