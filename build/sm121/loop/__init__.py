"""A kernel developer's loop: an edit, the units that it affects, what became of their machine code."""
