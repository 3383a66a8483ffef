"""Plans builds. Pure: pins, a request and facts about the machine go in, a printable plan comes out."""
