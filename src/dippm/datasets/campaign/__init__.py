"""A campaign measures many recipes on one device, and keeps every row as it comes."""
