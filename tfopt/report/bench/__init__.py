"""Hold what ``tfopt bench`` measured as data, and render it."""
