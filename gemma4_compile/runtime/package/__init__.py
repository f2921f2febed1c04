"""Packages: opened, fetched, checked, and which of their libraries runs."""
