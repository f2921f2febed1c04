"""Reports about a model that is not built: its plan, and what a recipe rounds away."""
