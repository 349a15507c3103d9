"""The backend ``cudagraphs`` of tracer_core. Not built yet: see `cudagraphs_backend.plugin`."""
