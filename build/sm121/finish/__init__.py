"""Ahead-of-time finishing: what the driver would compile on the user's machine is compiled here, what is dead goes."""
