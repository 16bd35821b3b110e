"""The figures that Nebula is held to: many cells, put together into rows with bars."""
