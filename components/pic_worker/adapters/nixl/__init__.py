"""Segments over NIXL."""
