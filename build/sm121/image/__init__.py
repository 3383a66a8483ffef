"""Container images: made without an engine, pushed, named, described and verified, all by digest."""
