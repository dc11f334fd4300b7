"""Networks that no library has in the form needed, one family per file, and builders over libraries' classes."""
