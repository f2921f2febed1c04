"""The small deterministic model that ships with the project."""
