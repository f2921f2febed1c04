"""The hot operators: what each one computes and the definition that defines it."""
