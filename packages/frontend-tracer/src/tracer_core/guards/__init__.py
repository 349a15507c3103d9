"""What a trace relied on: guards, their generated check, and the stamp that makes it cheap."""
