"""Which models to measure: every recipe can be rebuilt by anyone from its few words and numbers."""
