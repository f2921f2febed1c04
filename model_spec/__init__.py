"""What Gemma 4 is: configuration, parameter table and the Relax modules built from them."""
