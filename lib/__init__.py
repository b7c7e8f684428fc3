"""Everything but the doors: one package a room, one level of import a floor (docs/architecture.md)."""
