"""Names of other systems, over hookline's own."""
