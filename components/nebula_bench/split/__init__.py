"""How stores are divided, by itself: traces through one cache, with no time and no placement in between."""
