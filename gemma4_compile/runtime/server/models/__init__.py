"""Several packages in one server: which are loaded, and who answers."""
