"""What a package will need, known before it is compiled."""
