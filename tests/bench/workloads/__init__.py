"""What callers ask again and again, and what a cache of a given size could save of it."""
