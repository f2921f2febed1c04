"""The hot operators: what each one computes and the plain form that defines it."""
