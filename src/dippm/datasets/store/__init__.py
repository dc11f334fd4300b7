"""Where labels are kept: SQLite or PostgreSQL, and Parquet for sharing."""
