"""Training of the models that ship with the project."""
