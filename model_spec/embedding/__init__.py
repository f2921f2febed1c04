"""An encoder of texts, EmbeddingGemma 2: from the tokens of several texts to a vector of each."""
