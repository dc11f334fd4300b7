"""Training of everything that is learned; never imported when serving."""
