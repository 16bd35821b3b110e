"""Segments over plain TCP, and the side channel that every transport has."""
