"""Generation: greedy decoding, sampling and beam search."""
