"""Images by a container engine: planned, built with BuildKit, inspected, pushed and named by the registry's digest."""
