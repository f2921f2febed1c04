"""Image input: from 48x48 pixel blocks to rows of the text decoder."""
