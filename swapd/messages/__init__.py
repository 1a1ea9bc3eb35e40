"""What processes say to each other: frozen, tagged msgspec structs, one module a direction."""
