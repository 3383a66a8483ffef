"""A developer's libraries over an installed release: made, put on, shown and taken off without running anything."""
