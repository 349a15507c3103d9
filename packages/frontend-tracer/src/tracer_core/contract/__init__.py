"""The contract between the core and a backend: `Backend`, `CompileSpec` and the types in them."""
