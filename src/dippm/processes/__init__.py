"""Processes of ours that must not outlive, or take down, the one that started them."""
